"""A disk that fails or stalls when a test says so, at the one place where system calls are made."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from agentkv.tiers.disk import io as disk_io


class Device:
    """The real disk, until told to fail or to stall."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, int] = {}
        self.num_calls = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_asked = threading.Event()
        for name in ("preadv", "pwritev", "fdatasync", "posix_fallocate"):
            monkeypatch.setattr(disk_io, name, self._call(name, getattr(disk_io, name)))

    def _call(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.num_calls += 1
            self.is_asked.set()
            assert self.goes_on.wait(120)
            if name in self.failing:
                raise OSError(self.failing[name], os.strerror(self.failing[name]))
            return real(*arguments)

        return call


@contextlib.contextmanager
def stalled(device: Device, call: Callable[[], object]) -> Iterator[list[object]]:
    """Runs a call in a thread that hangs in the device until the block ends."""
    answers: list[object] = []
    device.is_asked.clear()
    device.goes_on.clear()
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    try:
        assert device.is_asked.wait(120)
        yield answers
    finally:
        device.goes_on.set()
        thread.join(120)


def until(is_true: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if is_true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")
