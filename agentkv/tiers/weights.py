"""A digest of a model's weights, so that KV of other weights is never taken for this model's.

Why sampled: a checkpoint may have hundreds of gigabytes, and a start must not read them all. Names,
sizes, all tensors' descriptions and three pages of every tensor are read: training changes them all
(design decision 10). Somebody who edits single values of a tensor by hand can defeat it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_SAMPLE_BYTES = 4096
_SAMPLES_OF_OPAQUE = 256
_MAX_HEADER_BYTES = 100 << 20


def weights_digest(path: Path) -> str | None:
    """32 hexadecimal characters for a folder of weights, or one file; None if there are none.

    Raises OSError if a file cannot be read.
    """
    files = [path] if path.is_file() else _files(path)
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(f"{file.name} {size}\n".encode())
            header = _safetensors_header(stream.fileno(), size)
            digest.update(header)
            for offset in _offsets(header, size):
                digest.update(os.pread(stream.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest()[:32]


def _files(folder: Path) -> list[Path]:
    """The weights' files of the first kind that is there."""
    for pattern in _PATTERNS:
        if files := sorted(folder.glob(pattern)):
            return files
    return []


def _safetensors_header(fd: int, size: int) -> bytes:
    """The header with its length; b"" if the file is of another kind."""
    start = os.pread(fd, 8, 0)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        return b""
    header = os.pread(fd, length, 8)
    return start + header if header.startswith(b"{") else b""


def _offsets(header: bytes, size: int) -> Iterator[int]:
    """Where samples are taken: begin, middle and end of every tensor, or evenly."""
    for begin, end in _spans(header):
        yield from (begin, (begin + end) // 2, max(begin, end - _SAMPLE_BYTES))
    if not header:
        yield from (size * i // _SAMPLES_OF_OPAQUE for i in range(_SAMPLES_OF_OPAQUE))


def _spans(header: bytes) -> Iterator[tuple[int, int]]:
    if not header:
        return
    try:
        tensors = json.loads(header[8:])
        for name, tensor in tensors.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                yield len(header) + int(begin), len(header) + int(end)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
