"""What a wait is filed under: tool, command class, first words, and the very command.

What: `Place`, read from a tool's name and command, or built from the fields of a trace. Why: both
a running server and the bench must file the same wait alike. Where: `contexts` turns a place into
the keys of levels. Names are cut and the command is kept as a hash only.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import xxhash

from agentkv.predict.commands import MAX_COMMAND_CHARS, SLEEP, classify_command
from agentkv.predict.priors import NAME_TO_TOOL, SHELL

HUMAN = "human"
MAX_NAME_CHARS = 64


class Place(NamedTuple):
    """All empty where nothing is known; `sleep_s` is how long the command says that it sleeps."""

    tool: str = ""
    cls: str = ""
    head: str = ""
    signature: str = ""
    sleep_s: float = 0.0


def place_of(tool: str | None, command: str | None) -> Place:
    """The place of a call; takes whatever clients sent."""
    name = tool.strip()[:MAX_NAME_CHARS].lower() if isinstance(tool, str) else ""
    if not name:
        return Place()
    name = NAME_TO_TOOL.get(name, name)
    line = command[:MAX_COMMAND_CHARS].strip() if isinstance(command, str) else ""
    return _place(name, line) if line and name != HUMAN else Place(name)


@lru_cache(maxsize=2048)
def _place(tool: str, line: str) -> Place:
    signature = xxhash.xxh3_64_hexdigest(line.encode(errors="replace"))
    if tool != SHELL:
        return Place(tool, signature=signature)
    found = classify_command(line)
    sleep_s = found.sleep_s if found.name == SLEEP else 0.0
    return Place(tool, found.name, found.head, signature, sleep_s)


def traced_place(
    tool: str | None, cls: str | None, head: str | None, signature: str | None
) -> Place:
    """The place of a call in a trace, which has no command but what was read from it."""
    name = (tool or "").strip()[:MAX_NAME_CHARS].lower()
    if not name:
        return Place()
    words = " ".join((head or "").split()[:3])[:MAX_NAME_CHARS]
    return Place(NAME_TO_TOOL.get(name, name), cls or "", words, signature or "")


def span_s(seconds: object, longest_s: float) -> float | None:
    """The value, at most `longest_s`, or None if it is no span of time."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    if not 0 <= seconds < math.inf:
        return None
    return float(min(seconds, longest_s))
