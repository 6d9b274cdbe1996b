"""Served apps, each with made-up engines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from .builders import FakeEngine, Served, serving

Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """Serves an app: `await serve(FakeEngine(...), "--api-key", ...)`."""
    async with AsyncExitStack() as stack:

        async def start(engine: FakeEngine | None = None, *flags: Any) -> Served:
            return await stack.enter_async_context(serving(monkeypatch, engine, flags))

        yield start


@pytest.fixture
async def served(serve: Serve) -> Served:
    """The usual app: one engine, no keys."""
    return await serve()
