"""The keyboard: a terminal that gives letters at once, and what its bytes mean.

Where: `live` reads; with no terminal on stdin nothing here is used.
"""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NAMED: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b|.", re.DOTALL)
_READ_BYTES = 4096


@contextmanager
def letters_at_once(fd: int) -> Iterator[None]:
    """Without waiting for Enter and without echo; as it was afterwards.

    Ctrl-C still interrupts. Ctrl-Z does nothing: it would leave the other screen on display.
    """
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        mode = termios.tcgetattr(fd)
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(fd, termios.TCSANOW, mode)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


def keyboard() -> int | None:
    """The file descriptor of stdin, None where that is no terminal."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return fd if os.isatty(fd) else None


def read_keys(fd: int) -> list[str] | None:
    """The keys that were pressed; None where the keyboard is gone."""
    try:
        data = os.read(fd, _READ_BYTES)
    except OSError:
        return None
    return keys_in(data.decode("utf-8", "ignore")) if data else None


def keys_in(text: str) -> list[str]:
    """Names of keys and single letters; sequences that are not known are left out."""
    found = (_NAMED.get(each, each) for each in _KEY.findall(text))
    return [key for key in found if key in _NAMED.values() or (len(key) == 1 and key.isprintable())]
