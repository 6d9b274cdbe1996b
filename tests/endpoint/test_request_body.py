"""The body is read ahead and then handed out as if nobody had looked."""

from typing import Any

import pytest

from agentkv.connectors.endpoint.request_body import RequestBody


def body_of(*messages: dict[str, Any], max_bytes: int = 10) -> tuple[RequestBody, list[Any]]:
    """A body over what a server gives, and what of it is left."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return RequestBody(receive, max_bytes), left


def piece(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


DISCONNECT = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        ([piece(b"abc", more=False)], b"abc"),
        ([piece(b"ab", more=True), piece(b"", more=True), piece(b"c", more=False)], b"abc"),
        ([piece(b"", more=False)], b""),
        ([{"type": "http.request"}], b""),
        ([piece(b"x" * 10, more=False)], b"x" * 10),
        ([piece(b"x" * 11, more=False)], None),
        ([piece(b"x" * 6, more=True), piece(b"x" * 6, more=True), piece(b"x", more=False)], None),
        ([piece(b"ab", more=True), DISCONNECT], None),
    ],
)
async def test_all_messages_are_replayed_in_order(
    messages: list[dict[str, Any]], read: bytes | None
) -> None:
    body, left = body_of(*messages, DISCONNECT)
    assert await body.read() == read
    assert [await body.receive() for _ in range(len(messages) + 1)] == [*messages, DISCONNECT]
    assert left == []


async def test_nothing_is_received_that_was_not_asked_for() -> None:
    body, left = body_of(piece(b"x" * 11, more=True), piece(b"y", more=False))
    await body.read()
    assert len(left) == 1
