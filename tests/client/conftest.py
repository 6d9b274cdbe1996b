"""A server that writes events down."""

import dataclasses
from collections.abc import Iterator

import pytest

from agentkv.client import Limits, channel
from agentkv.client.session import _told

from .recorder import Recorder, recording


@pytest.fixture
def server() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture(autouse=True)
def nothing_told_before() -> None:
    """A fault is logged once per process."""
    _told.clear()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers is waited for, and what is told late is told, however busy the machine
    is; a test that wants less says so."""
    longer_s = {"request_timeout_s": 60.0, "flush_s": 60.0}
    values = tuple(longer_s.get(each.name, each.default) for each in dataclasses.fields(Limits))
    monkeypatch.setattr(Limits.__init__, "__defaults__", values)
    monkeypatch.setattr(channel, "_LATE_AFTER_S", 60.0)
