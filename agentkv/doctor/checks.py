"""One check of a machine or a server: how it is, in a line, and in another how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """`mend` is empty where nothing is to be done."""

    name: str
    state: State
    said: str
    mend: str = ""


def ok(name: str, said: str) -> Check:
    return Check(name, State.OK, said)


def warn(name: str, said: str, mend: str) -> Check:
    return Check(name, State.WARN, said, mend)


def fail(name: str, said: str, mend: str) -> Check:
    return Check(name, State.FAIL, said, mend)


def check_values(checks: Iterable[Check]) -> dict[str, object]:
    """For `--json`."""
    return {
        "checks": [
            {"name": each.name, "state": each.state.value, "said": each.said, "mend": each.mend}
            for each in checks
        ]
    }
