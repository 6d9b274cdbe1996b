"""What a server answers, and the names under which its troubles are counted.

Why a table of our own: an error's text may repeat what was sent, a password too; only its first
word, the code, is safe to keep. Where: all `redis_*` modules.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias


class Mark(enum.Enum):
    """Outcomes of a command that are not a reply's own value."""

    UNANSWERED = "unanswered"
    FILLED = "filled"  # the value lies in the memory given for it
    WRONG_LENGTH = "wrong_length"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a server cannot be used: a counter's name, and a sentence without secrets."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A server's refusal, by its code."""

    code: str

    @property
    def reason(self) -> str:
        """The name it is counted under."""
        return _REASONS.get(self.code, "server_error")

    @property
    def trouble(self) -> Trouble:
        """What it means to whoever runs the server."""
        return Trouble(self.reason, _ADVICE.get(self.code, "it refuses a command"))


Reply: TypeAlias = "bytes | int | list[Reply] | ErrorReply | Mark | None"


class LinkLost(Exception):
    """A connection is of no use any more, or there is none."""

    def __init__(self, trouble: Trouble, *, is_connect: bool = False) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble
        self.is_connect = is_connect


def lost(reason: str, text: str) -> LinkLost:
    """A connection that broke in use."""
    return LinkLost(Trouble(reason, text))


_REASONS = {
    "OOM": "server_full",
    "READONLY": "read_only",
    "MISCONF": "server_cannot_save",
    "NOREPLICAS": "too_few_replicas",
    "NOPERM": "no_permission",
    "NOAUTH": "no_auth",
    "WRONGPASS": "wrong_password",
    "LOADING": "loading",
    "BUSY": "server_busy",
    "MASTERDOWN": "master_down",
    "MOVED": "moved",
    "ASK": "ask",
    "TRYAGAIN": "slot_is_moving",
    "CLUSTERDOWN": "cluster_down",
    "CROSSSLOT": "cross_slot",
    "WRONGTYPE": "wrong_type",
}

_ADVICE = {
    "OOM": "it is full and evicts nothing; set its maxmemory-policy to allkeys-lru",
    "READONLY": "it is a replica and takes no writes; name the master, Sentinel or the cluster",
    "MISCONF": "it refuses writes since it cannot save to its disk",
    "NOPERM": "the user may not do this; allow +@read +@write +@keyspace +ping on ~agentkv:*",
    "NOAUTH": "it wants a password; set one",
    "WRONGPASS": "it refuses the user name or password",
    "LOADING": "it is loading its data",
    "MASTERDOWN": "it is a replica without a master",
    "MOVED": "it is a cluster that moves its slots",
    "CLUSTERDOWN": "the cluster is down",
}

STOPS_WRITES = frozenset({"OOM", "READONLY", "MISCONF", "NOREPLICAS", "NOPERM"})
"""Codes after which it is of no use to send more values for a while."""

STOPS_ALL = frozenset({"NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "CLUSTERDOWN"})
"""Codes after which the server is of no use until it answers otherwise."""

ELSEWHERE = frozenset({"MOVED", "READONLY"})
"""Codes that say another server should have been asked."""
