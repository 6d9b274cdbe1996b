"""The live page before a real controller, in a real browser.

The app is vLLM's own, the engine's answers are made by the code that makes them in an engine, of a
world that the test plays; the clock of that world is the real one whenever the page asks.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, async_playwright
from playwright.async_api import expect as async_expect
from playwright.sync_api import Browser as SyncBrowser
from playwright.sync_api import expect as sync_expect
from playwright.sync_api import sync_playwright

from agentkv.events import TurnTag
from agentkv.session_report import engine_state, ledger_of, sessions_matching
from agentkv.signals import ControlMessage, ControlReply
from tests.test_event_handler import Told

HOSTILE = "<img src=x onerror=\"document.title='broken'\">"


class WatchedWorld(Told):
    """Sessions of the last minutes; `num_asked` counts the questions that reached the engine."""

    def __init__(self, *, ago_s: float = 200.0) -> None:
        super().__init__()
        self.clock.advance(time.time() - ago_s - self.clock.wall_s())
        self.num_asked = 0

    def answer(self, rank: int, message: ControlMessage) -> ControlReply:
        """As `connectors.control.ControlPort` answers."""
        self.num_asked += 1
        self.come_to_now()
        query, ledger_query = message.sessions, message.ledger
        now_s = self.clock.monotonic_s()
        pool = {"pool_blocks": 64, "free_blocks": 40}
        return ControlReply(
            id=message.id,
            sessions=sessions_matching(self.controller, query, now_s) if query else None,
            ledger=ledger_of(self.ledger, ledger_query) if ledger_query else None,
            state=engine_state(self.controller, **pool) if message.wants_state else None,
        )

    def come_to_now(self) -> None:
        self.clock.advance(max(0.0, time.time() - self.clock.wall_s()))

    def play(self) -> None:
        """Three sessions: one that ended, one that was swapped and came back, one in a pause."""
        bash = TurnTag(tool="bash", command="pytest -q", expected_wait_s=20)
        self.turn("done", range(8), bash)
        self.turn("back", range(10, 30), bash)
        self.clock.advance(12)
        self.turn("done", range(9), TurnTag(last_turn=True), gpu=128)
        self.press()
        list(self.controller.victims())
        self.clock.advance(30)
        self.turn("back", range(10, 34), TurnTag(tool="search", expected_wait_s=2), dram=320)
        self.clock.advance(3)
        self.turn("back", range(10, 35), bash, gpu=384)
        self.turn(HOSTILE, range(50, 60), TurnTag(tool=HOSTILE, expected_wait_s=500))
        self.come_to_now()


for each in (async_expect, sync_expect):  # What a page shall show is waited for so long.
    each.set_options(timeout=60_000)


def chromium() -> str:
    """The browser of the system. Raises AssertionError where there is none."""
    found = os.environ.get("AGENTKV_CHROMIUM") or shutil.which("chromium")
    assert found, "no chromium: install it (apt-get install chromium) or set AGENTKV_CHROMIUM"
    return found


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A headless browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments())
        yield browser
        await browser.close()


@contextmanager
def browsing_sync() -> Iterator[SyncBrowser]:
    """The same for tests that are not asynchronous."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments())
        yield browser
        browser.close()


def arguments() -> list[str]:
    """Chromium has no sandbox for root."""
    return ["--no-sandbox"] if os.getuid() == 0 else []


@asynccontextmanager
async def listening(app: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """The app at an address of this machine, in this event loop; 0: any port."""
    config = uvicorn.Config(app, port=port, lifespan="off", log_level="error", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        assert not task.done(), "the port is taken"
        await asyncio.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
