"""Hints that a session gave and gives no more: a layer on the way has dropped them.

Why its own look: a lost hint changes no prompt, so that nobody notices (OpenHands#3772). A name
belongs on every request of its session. Tags and cache markers may be left out now and then: they
count as lost where they came with every request at first and with none of the last three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentkv.doctor.causes import Cause
from agentkv.doctor.difference import Difference
from agentkv.doctor.read_body import MARKER_HINT, SESSION_HINT, TAG_HINT
from agentkv.doctor.threads import Node

_MIN_WITH = 2
_MIN_WITHOUT = 3


def lost_name(node: Node) -> Difference | None:
    """The request goes on from one that named its session, and names none."""
    former = node.previous.request if node.previous is not None else None
    if former is None or former.session is None or node.request.session is not None:
        return None
    where = f"headers, {SESSION_HINT}"
    return Difference(Cause.HINTS_LOST, where, 0, f'session "{former.session}" is not named')


@dataclass(frozen=True, slots=True)
class Hinted:
    """What one request of a session carried."""

    turn: int
    line: int
    hints: frozenset[str]


def lost_hints(requests: list[Hinted]) -> Iterator[tuple[Hinted, str, str]]:
    """Of one session: the first request that came without, the hint, and the evidence."""
    for hint in (TAG_HINT, MARKER_HINT):
        has = [hint in request.hints for request in requests]
        num_with = has.index(False) if False in has else len(has)
        rest = has[num_with:]
        if num_with >= _MIN_WITH and len(rest) >= _MIN_WITHOUT and not any(rest):
            said = f"on the first {num_with} requests, on none of the {len(rest)} after them"
            yield requests[num_with], hint, said
