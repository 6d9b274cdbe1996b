"""Names of sessions: those that clients give, and those of sessions that were inferred.

Why apart: who could name another's inferred session would take part in it, and see its tools.
"""

from __future__ import annotations

_INFERRED = "inferred-"


def inferred_name(number: int) -> str:
    """For a session that nobody named."""
    return f"{_INFERRED}{number}"


def given_name(name: str | None) -> str | None:
    """The name that a client gave; None if it gave none, or one that is not its to give."""
    return None if name is None or name.startswith(_INFERRED) else name
