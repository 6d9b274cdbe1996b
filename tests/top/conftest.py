"""A server for every test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fake_server import FakeServer, running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Says that one session is paused."""
    with running() as started:
        yield started
