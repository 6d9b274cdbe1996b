"""Events come out whole, whatever ends the lines and wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.watch.sse import EventSplitter


def split(*chunks: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [event for chunk in chunks for event in splitter.split(chunk)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b \n\n", [b"a", b" b "]),
        (b"event: x\nid: 1\ndata: a\n: comment\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\nevent: x\n\n\n\n: ping\n\n", []),
        (b"database: a\n\ndata: b\n\n", [b"b"]),
        (b"data: not ended\n", []),
        ("data: \u2028\x0b\x0c»\n\n".encode(), ["\u2028\x0b\x0c»".encode()]),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_events_of_a_stream(stream: bytes, expected: list[bytes], line_end: bytes) -> None:
    stream = stream.replace(b"\n", line_end)
    assert split(stream) == expected
    for at in range(len(stream)):
        assert split(stream[:at], stream[at:]) == expected, at
    assert split(*(bytes([byte]) for byte in stream)) == expected


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    assert split(b"data: a\r", b"", b"\ndata: b\r\n\r\n") == [b"a\nb"]


def test_between_events_means_that_the_next_byte_begins_one() -> None:
    splitter = EventSplitter()
    states = []
    for chunk in (b"data: a", b"\r", b"\n", b"\r", b"\n", b"da"):
        list(splitter.split(chunk))
        states.append(splitter.is_between_events)
    assert states == [False, False, False, False, True, False]
    list(splitter.split(b"ta: b\n\n"))
    assert splitter.is_between_events
    assert splitter.kept_bytes == 0


@given(
    st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"\r\n", b": x", b"data: b", b"e"])),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_the_cuts_never_matter(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    borders = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert split(*(stream[a:b] for a, b in pairwise(borders))) == split(stream)
