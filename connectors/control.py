"""The engine's end of the control path: messages from the API process, and the answers to them.

A message comes as a request that was aborted before it began: vLLM's own way to tell a connector
something, which also wakes an idle engine. The answer goes out with the statistics of the same
step, as the label of a counter, since vLLM adds those up without looking into them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.controller import Controller
from agentkv.event_handler import EventHandler
from agentkv.events import TAG_KEY
from agentkv.session_report import engine_state, ledger_of, sessions_matching
from agentkv.signals import CONTROL_KEY, REPLY_KEY, ControlMessage, ControlReply

_TICK_SLACK_S = 0.05
_MAX_UNSENT = 1024  # answers; without statistics nobody takes them


def is_control(request: Request) -> bool:
    """Whether a request is a message to us. Clients cannot abort one before it begins."""
    return bool(request.abort_immediately) and _raw_message(request) is not None


def take_replies(data: dict[str, Any]) -> list[ControlReply]:
    """Takes our answers out of statistics that arrived in the API process; never raises."""
    data.get("types", {}).pop(REPLY_KEY, None)
    labels = data.get("data", {}).pop(REPLY_KEY, None) or {}
    replies: list[ControlReply] = []
    for (text,) in labels:
        try:
            replies.append(ControlReply.model_validate_json(text))
        except ValidationError:
            continue  # of another version; its sender will wait in vain and say so
    return replies


class ControlPort:
    """Owned by the scheduler thread."""

    def __init__(self, controller: Controller, deps: Deps, *, can_fetch: bool = True) -> None:
        self._controller = controller
        self._events = EventHandler(controller, deps, can_fetch=can_fetch)
        self._deps = deps
        self._unsent: deque[ControlReply] = deque(maxlen=_MAX_UNSENT)
        self._told_tick_at_s: float | None = None

    def receive(self, request: Request, **pool: int) -> None:
        """Applies a message and writes its answer; `pool` goes into the engine's state."""
        raw = _raw_message(request)
        try:
            message = ControlMessage.model_validate(raw)
        except ValidationError:
            self._deps.recorder.count(metrics.TAG_PROBLEMS)
            return
        results = tuple(self._events.apply(scoped) for scoped in message.events)
        for result in results:
            self._deps.recorder.count(metrics.SIGNALS, result.status.value)
        query, ledger_query = message.sessions, message.ledger
        now_s = self._deps.clock.monotonic_s()
        self._unsent.append(
            ControlReply(
                id=message.id,
                results=results,
                sessions=sessions_matching(self._controller, query, now_s) if query else None,
                ledger=ledger_of(self._deps.ledger, ledger_query) if ledger_query else None,
                state=engine_state(self._controller, **pool) if message.wants_state else None,
            )
        )

    def note_idle(self, tick_in_s: float | None) -> None:
        """The engine will sleep: somebody has to wake it when time comes for a pause."""
        if tick_in_s is None:
            return
        now_s = self._deps.clock.monotonic_s()
        told_s = self._told_tick_at_s
        is_known = told_s is not None and now_s < told_s <= now_s + tick_in_s + _TICK_SLACK_S
        if not is_known:
            self._unsent.append(ControlReply(id=""))

    def add_to(self, stats: OffloadingConnectorStats, tick_in_s: float | None) -> None:
        """Puts what is to be said into the statistics of this step."""
        if self._unsent:
            now_s = self._deps.clock.monotonic_s()
            self._told_tick_at_s = None if tick_in_s is None else now_s + tick_in_s
        while self._unsent:
            reply = self._unsent.popleft().model_copy(update={"tick_in_s": tick_in_s})
            stats.increase_counter(REPLY_KEY, 1, (reply.model_dump_json(exclude_defaults=True),))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)


def _raw_message(request: Request) -> Any:
    params = request.kv_transfer_params
    # vLLM aborts a request it refused with the client's own parameters, if they ask for a remote
    # prefill. A message has nothing beside it, so such a request is never one.
    if not isinstance(params, Mapping) or params.keys() != {TAG_KEY}:
        return None
    tag = params[TAG_KEY]
    return tag.get(CONTROL_KEY) if isinstance(tag, Mapping) else None


def without_replies(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of statistics for vLLM's log, which shows every counter there is."""
    return {
        part: {name: value for name, value in values.items() if name != REPLY_KEY}
        for part, values in data.items()
    }
