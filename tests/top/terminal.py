"""A terminal with `agentkv top` in it: keys in, pictures out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_WAIT_S = 60.0  # At most; what is waited for takes milliseconds, on a machine that is not loaded.
# A shell starts what runs in the background with SIGINT ignored, and so all that it starts.
_CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from agentkv.cli.main import main
main()
"""
_PICTURE = "\x1b[H"
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Terminal:
    """`output`: all that was written to it so far."""

    process: subprocess.Popen[bytes]
    fd: int
    output: str = ""
    _bytes: bytes = field(default=b"", repr=False)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """As when the user pulls at the window."""
        _set_size(self.fd, width, height)
        self.process.send_signal(signal.SIGWINCH)

    def shows(self, *texts: str, but_not: str | None = None) -> list[str]:
        """Waits for a picture that has all of them; its lines."""

        def is_there(lines: list[str]) -> bool:
            found = "\n".join(lines)
            return all(text in found for text in texts) and (not but_not or but_not not in found)

        return self.until(is_there)

    def until(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Waits for a picture; its lines."""
        deadline_s = time.monotonic() + _WAIT_S
        while not is_there(self.lines()):
            assert time.monotonic() < deadline_s, "\n".join(self.lines())
            assert self.read() or self.process.poll() is None, self.output[-2000:]
        return self.lines()

    def lines(self) -> list[str]:
        """The last picture, as far as it was written."""
        picture = self.output.rpartition(_PICTURE)[2]
        return _STYLES.sub("", picture).replace("\r", "").split("\n")

    def read(self) -> bool:
        """What has come; False where nothing will any more."""
        if not select.select([self.fd], [], [], 0.2)[0]:
            return True
        data = b""
        with suppress(OSError):
            data = os.read(self.fd, 65536)
        self._bytes += data
        self.output = self._bytes.decode("utf-8", "ignore")
        return bool(data)

    def ends(self) -> int:
        """Waits for the end of the command; its status."""
        deadline_s = time.monotonic() + _WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            self.read()
        while self.read() and select.select([self.fd], [], [], 0)[0]:
            pass
        return self.process.wait(_WAIT_S)

    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it."""
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)


@contextmanager
def top(
    *args: str, width: int = 80, height: int = 24, has_keyboard: bool = True
) -> Iterator[Terminal]:
    """The command in a terminal of its own; killed if it is still there at the end."""
    fd, inside = pty.openpty()
    _set_size(inside, width, height)
    unset = ("COLUMNS", "LINES", "NO_COLOR", "VLLM_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, "top", *args],
        stdin=inside if has_keyboard else subprocess.DEVNULL,
        stdout=inside,
        stderr=inside,
        env=environment | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(inside) if has_keyboard else None
    try:
        yield Terminal(process, fd)
    finally:
        process.kill()
        process.wait()
        os.close(fd)
        if not has_keyboard:
            os.close(inside)


def _set_size(fd: int, width: int, height: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
