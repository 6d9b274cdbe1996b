"""Keeps our faults out of vLLM: a fault is a counter and a log line, and the request goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from vllm.logger import init_logger

from agentkv import metrics
from agentkv.metrics import Recorder

logger = init_logger("vllm.agentkv")

_Result = TypeVar("_Result")


class Faults:
    """Counts the exceptions being handled; the first one of each place is logged."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: set[str] = set()

    def note(self, where: str) -> None:
        self._recorder.count(metrics.FAULTS, where)
        if where not in self._seen:
            self._seen.add(where)
            logger.exception("agentkv: fault in %s; going on without it", where)


class Guarded(Protocol):
    faults: Faults


def never_raises(method: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """A method of a Guarded that returns None instead of raising."""

    @functools.wraps(method)
    def guarded(self: Guarded, *args: Any, **kwargs: Any) -> _Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception:
            # The edge to vLLM's scheduler: let through, a bug of ours in bookkeeping would end the
            # engine and every request in it. Counted (`agentkv:faults`) and logged with its place;
            # tests/connectors/test_faults.py breaks the parts below one by one.
            self.faults.note(method.__name__)
            return None

    return guarded
