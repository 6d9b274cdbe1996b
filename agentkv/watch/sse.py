"""Server-sent events out of a stream of bytes, cut anywhere.

What: gives the data of each complete event; comments, names and ids of events are dropped.
Why: a reply arrives in chunks that respect neither events nor characters. Where: under the
streaming watcher of `replies`. Lines end with LF, CRLF or CR, as the standard has it.
"""

from __future__ import annotations

from collections.abc import Iterator


class EventSplitter:
    """Owned by one stream. Works on bytes: UTF-8 never has a line end inside a character."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._is_after_cr = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of the unfinished event."""
        return len(self._line) + self._data_bytes

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins a new event."""
        return not self._line and not self._data and not self._is_after_cr

    def split(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that `chunk` completes, in order."""
        if self._is_after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._is_after_cr = False
        if b"\n" not in chunk and b"\r" not in chunk:
            self._line += chunk
            return
        self._line += chunk
        lines = self._line.splitlines(keepends=True)
        self._line = bytearray() if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._is_after_cr = chunk.endswith(b"\r")
        for line in lines:
            data = self._read(bytes(line.rstrip(b"\r\n")))
            if data is not None:
                yield data

    def _read(self, line: bytes) -> bytes | None:
        """The data of the event that `line` ends, None if it ends none."""
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._data_bytes += len(data) + 1
        elif not line and self._data:
            data = b"\n".join(self._data)
            self._data.clear()
            self._data_bytes = 0
            return data
        return None
