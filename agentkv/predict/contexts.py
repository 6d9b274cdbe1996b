"""Which levels tell something about a wait: the chain from all waits to this very command.

What: the keys of a place, coarse to fine, and the views that a session's own past opens. Why:
written once, so that what is asked and what is learned can never differ. Where: `opinion` walks the
chain and mixes the views in.

A command that a session has run before is a kind of its own (`seen`): caches are warm, permissions
given; in one recorded harness a first call takes 8 s and the same again 0.3 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from agentkv.predict.levels import Key
from agentkv.predict.place import HUMAN, Place
from agentkv.predict.priors import SHELL

Seen = Literal["", "first_time", "repeated"]
"""Whether the session ran this command before; "" where the session is not known."""

# How many observations the level above is worth, by kind.
KIND_TO_LEAN = {
    **{"all": 0.5, "human": 0.5, "tool": 1.0, "class": 2.0, "word": 2.0, "head": 1.0},
    **{"command": 2.0, "last": 3.0, "pace": 3.0, "own tool": 0.5, "own head": 1.0},
}

ALL = Key("all", ())
ALL_HUMAN = Key("human", ())
ROOTS = (ALL, ALL_HUMAN)
"""Of waits that ended only: how long waits are before they are given up is judged by these."""


@lru_cache(maxsize=4096)
def chain(place: Place, seen: Seen) -> Sequence[Key]:
    """The levels shared by all sessions, coarse to fine. Humans and tools share none."""
    tool, cls, head, signature = place[:4]
    if tool == HUMAN:
        return (ALL_HUMAN, tool_key(place, seen))
    keys = [ALL, Key("tool", (tool,))]
    if seen:
        keys.append(tool_key(place, seen))
    if cls:
        keys.append(Key("class", (tool, cls, seen)))
    if head:
        word = head.partition(" ")[0]
        keys.append(Key("word", (tool, cls, word, seen)))
        keys.append(Key("head", (tool, cls, head, seen)))  # "python" alone is unlike "python -m"
    if signature:
        keys.append(Key("command", (tool, signature, seen)))
    return keys


@lru_cache(maxsize=4096)
def tool_key(place: Place, seen: Seen) -> Key:
    """The level that the views of a session's past are compared with."""
    return Key("tool", (place.tool, seen)) if seen else Key("tool", (place.tool,))


class View(NamedTuple):
    """A level that is one opinion on a wait; its news is what it says beyond `compared_with`."""

    name: str
    key: Key
    compared_with: Key


class Past(NamedTuple):
    """What a session's own waits tell at a place, in seconds; None where it has had none."""

    last_of_command_s: float | None = None
    last_of_class_s: float | None = None
    pace_s: float | None = None


def views(place: Place, seen: Seen, past: Past) -> list[View]:
    """Shared levels that map a session's last waits to its next one."""
    tool, cls = place.tool, place.cls
    at_tool = tool_key(place, seen)
    found = []
    if past.last_of_class_s is not None:
        step = _step(past.last_of_class_s, 4)
        found.append(View("last of class", Key("last", (tool, "", seen, step)), at_tool))
    if past.last_of_command_s is not None:
        step = _step(past.last_of_command_s, 4)
        found.append(View("last of command", Key("last", (tool, "same", seen, step)), at_tool))
    if past.pace_s is not None:
        at_class = Key("class", (tool, cls, seen)) if cls else at_tool
        key = Key("pace", (tool, cls, seen, _step(past.pace_s, 9)))
        found.append(View("pace", key, at_class))
    return found


def group_of(place: Place, seen: Seen) -> str:
    """Whose mixing weights a place shares: there are few, so that they are learned soon."""
    kinds = {SHELL: "shell", HUMAN: "human", "": "unnamed"}
    return f"{kinds.get(place.tool, 'other')} {seen}"


def _step(wait_s: float, per_decade: int) -> str:
    return str(int((math.log10(min(max(wait_s, 1e-3), 1e5)) + 3) * per_decade))
