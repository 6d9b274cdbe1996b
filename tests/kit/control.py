"""Control messages as vLLM hands them to a connector: requests aborted before they began."""

from __future__ import annotations

import itertools
from typing import Any

from kit.rig import Rig
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentkv.signals import CONTROL_KEY, ControlMessage, Event, EventResult, ScopedEvent

_numbers = itertools.count()


def tell(rig: Rig, *events: Event, scope: str = "", **fields: Any) -> str:
    """A message arrives from the API process; returns its id."""
    message_id = f"message-{next(_numbers)}"
    scoped = tuple(ScopedEvent(event=event, scope=scope) for event in events)
    request = control_request(ControlMessage(id=message_id, events=scoped, **fields))
    rig.scheduler.add_request(request)
    rig.scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)
    return message_id


def signal(rig: Rig, event: str, session: str, *, scope: str = "", **fields: Any) -> EventResult:
    """One event about a session, and what became of it."""
    named = Event.model_validate({"event": event, "session_id": session, **fields})
    message_id = tell(rig, named, scope=scope)
    rig.step_until(lambda: message_id in rig.replies)
    [result] = rig.replies[message_id].results
    return result


def control_request(message: ControlMessage) -> Request:
    """As `AsyncLLM.notify_kv_transfer_request_rejected` makes it."""
    control = {CONTROL_KEY: message.model_dump(mode="json", exclude_defaults=True)}
    return Request(
        f"agentkv-{message.id}",
        [0],
        SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"agentkv": control}}),
        None,
        arrival_time=0.0,
        abort_immediately=True,
    )
