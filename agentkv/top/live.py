"""Goes round: a thread looks at the server, the keyboard is read, the screen is drawn.

Why a thread: a server that hangs must not make the keys hang. Nothing is drawn but what is new, a
look or a key or another size of the screen, so watching costs next to nothing.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live

from agentkv.errors import AgentKVError
from agentkv.explain import pause_stories
from agentkv.terminal_text import clean_all
from agentkv.top.board import Board
from agentkv.top.fetch import Look, Source, Trouble
from agentkv.top.keys import keyboard, letters_at_once, read_keys
from agentkv.top.page import Printer
from agentkv.top.screen import screen
from agentkv.top.view import Wish

Ledger = Callable[[str], Sequence[dict[str, Any]]]
"""The records of a session by its id. Raises AgentKVError."""


class Doorbell:
    """Ends the wait of this thread, from another one or from a signal. `button`: to write to."""

    def __init__(self) -> None:
        self.fd, self.button = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.button, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # It rings already.
            os.write(self.button, b"!")

    def silence(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class Asker:
    """Asks the server in threads of its own; what it says is taken in the order it came.

    The threads are daemons: nobody waits for a server that hangs.
    """

    def __init__(self, source: Source, ledger: Ledger, bell: Doorbell) -> None:
        self._source, self._ledger, self._bell = source, ledger, bell
        self._news: SimpleQueue[Callable[[Board], None]] = SimpleQueue()
        self._has_ended = threading.Event()

    def look_every(self, interval_s: float) -> None:
        """From one interval from now on."""
        threading.Thread(target=self._look_on, args=(interval_s,), daemon=True).start()

    def open(self, session_id: str) -> None:
        """Ask for one session and its ledger."""
        threading.Thread(target=self._open, args=(session_id,), daemon=True).start()

    def tell(self, board: Board) -> None:
        """All that has come since."""
        with suppress(Empty):
            while True:
                self._news.get_nowait()(board)

    def end(self) -> None:
        self._has_ended.set()

    def _look_on(self, interval_s: float) -> None:
        while not self._has_ended.wait(interval_s):
            try:
                self._say(partial(Board.note_look, look=self._source.look()))
            except Trouble as error:
                self._say(partial(Board.note_trouble, trouble=str(error)))

    def _open(self, session_id: str) -> None:
        try:
            session = self._source.session(session_id)
            stories = pause_stories(clean_all(list(self._ledger(session_id))))
        except (AgentKVError, httpx.HTTPError, ValueError) as error:
            said = str(error)
            self._say(partial(Board.note_no_ledger, session_id=session_id, trouble=said))
        else:
            self._say(
                partial(Board.note_ledger, session_id=session_id, session=session, stories=stories)
            )

    def _say(self, news: Callable[[Board], None]) -> None:
        self._news.put(news)
        self._bell.ring()


def watch(
    source: Source,
    first: Look,
    *,
    ledger: Ledger,
    printer: Printer,
    interval_s: float,
    console: Console,
) -> None:
    """Until q or Ctrl-C. The console is a terminal, this the main thread.

    The source stays open: a thread may be asking it still.
    """
    fd, bell = keyboard(), Doorbell()
    board = Board(source.url, first, printer, interval_s=interval_s, has_keys=fd is not None)
    asker = Asker(source, ledger, bell)
    with (
        suppress(KeyboardInterrupt),
        _signals(bell),
        letters_at_once(fd) if fd is not None else nullcontext(),
        Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        asker.look_every(interval_s)
        try:
            _go_round(board, asker, bell, fd, live)
        finally:
            asker.end()


def _go_round(board: Board, asker: Asker, bell: Doorbell, fd: int | None, live: Live) -> None:
    while True:
        size = live.console.size
        live.update(screen(board.scene(), size.width, size.height), refresh=True)
        ready, _, _ = select.select([bell.fd] if fd is None else [bell.fd, fd], [], [])
        bell.silence()
        asker.tell(board)
        keys = read_keys(fd) if fd in ready and fd is not None else []
        if keys is None:
            return
        for key in keys:
            wish = board.press(key)
            if wish is Wish.QUIT:
                return
            if wish is Wish.OPEN and board.view.page_of is not None:
                asker.open(board.view.page_of)


@contextmanager
def _signals(bell: Doorbell) -> Iterator[None]:
    """Another size of the screen is drawn at once; a polite end leaves the terminal as it was.

    Why the bell: a signal that another thread gets does not end the wait of this one.
    """

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
    }
    other_bell = signal.set_wakeup_fd(bell.button, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(other_bell)
        for number, handler in before.items():
            signal.signal(number, handler)
