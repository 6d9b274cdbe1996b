"""What becomes of an event on its way, decided without sending anything.

What: `Limits` bound what the SDK may cost the agent; `judge` reads an answer of the server;
`Outlook` says when to send again.
Why apart from the sender: a server may be gone, hang, know nothing of agentkv or refuse the key,
and none of that may cost the agent more than one request now and then.
Where: used by `channel`, which owns the thread and the queue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from agentkv.signals import Status

_FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on time and memory. The defaults suit an agent that talks to one server."""

    max_queued: int = 1024
    """Events kept while the server does not take them; beyond it the oldest are dropped."""
    max_batch: int = 64
    """Events in one request; a server takes 256."""
    request_timeout_s: float = 2.0
    """The longest one request may take, in the background."""
    flush_s: float = 1.0
    """The longest that closing a session waits for its last events."""
    heartbeat_s: float = 20.0
    """Between two signs that a tool still runs."""
    max_tool_s: float = 3600.0
    """A tool not reported done after this long is no longer said to run."""
    max_age_s: float = 30.0
    """An event older than this is not sent any more, unless it ends a session."""
    max_backoff_s: float = 30.0
    """The longest wait before a server that failed is tried again."""
    recheck_s: float = 300.0
    """A server without agentkv, or one that refuses the key, is left alone for this long."""
    idle_s: float = 30.0
    """The background thread ends after this long with nothing to do; the next event starts one."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How many events the server took, how many were dropped, and what last went wrong."""

    sent: int = 0
    dropped: int = 0
    problem: str | None = None


class Verdict(Enum):
    """What an answer means for this event and for the next ones."""

    TAKEN = "taken"
    FAULTY = "faulty"  # These events are wrong; others may be right.
    LATER = "later"  # The server is busy or gone; try again soon.
    ABSENT = "absent"  # No agentkv here.
    REFUSED = "refused"  # Not with this key.


def judge(status_code: int, content: bytes) -> Verdict:
    """Reads the answer to a batch of events.

    A server may answer anything with success: one that gives no results is not agentkv's.
    """
    if 200 <= status_code < 300:
        return Verdict.TAKEN if _is_supported(content) else Verdict.ABSENT
    if status_code in (401, 403):
        return Verdict.REFUSED
    if status_code in (404, 405, 501) or 300 <= status_code < 400:
        return Verdict.ABSENT
    if status_code in (408, 425, 429) or status_code >= 500:
        return Verdict.LATER
    return Verdict.FAULTY


def _is_supported(content: bytes) -> bool:
    try:
        statuses = [result["status"] for result in json.loads(content)["results"]]
    except (ValueError, TypeError, KeyError):
        return False
    return any(status != Status.UNSUPPORTED.value for status in statuses)


class Outlook:
    """Whether it is worth sending now. Not thread-safe: the channel's lock guards it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._retry_at_s = 0.0
        self._num_failures = 0
        self._is_left_alone = False

    def note(self, verdict: Verdict, now_s: float) -> None:
        """Takes in what became of the last request."""
        self._is_left_alone = verdict in (Verdict.ABSENT, Verdict.REFUSED)
        if self._is_left_alone:
            self._retry_at_s = now_s + self._limits.recheck_s
        elif verdict is Verdict.LATER:
            backoff_s = _FIRST_BACKOFF_S * 2 ** min(self._num_failures, 16)
            self._num_failures += 1
            self._retry_at_s = now_s + min(backoff_s, self._limits.max_backoff_s)
        else:
            self._retry_at_s, self._num_failures = 0.0, 0

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next request may be made; 0 if it may be made now."""
        return max(0.0, self._retry_at_s - now_s)

    def wants_events(self, now_s: float) -> bool:
        """False while the server is left alone: events are not even queued then."""
        return not self._is_left_alone or now_s >= self._retry_at_s
