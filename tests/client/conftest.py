"""A server that writes events down."""

from collections.abc import Iterator

import pytest

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
