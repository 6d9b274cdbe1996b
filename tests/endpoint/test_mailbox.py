"""Replies of the engine: they find who waits for them, and never disturb who brings them."""

from collections.abc import Iterator

import pytest

from agentkv.connectors.endpoint import mailbox
from agentkv.connectors.endpoint.mailbox import Mailbox, activate, deliver, new_message_id
from agentkv.signals import ControlReply


@pytest.fixture
def box() -> Iterator[Mailbox]:
    made = Mailbox()
    activate(made)
    yield made
    activate(None)


async def test_a_reply_goes_to_its_message(box: Mailbox) -> None:
    one, other = new_message_id(), new_message_id()
    box.expect(one)
    box.expect(other)
    deliver(ControlReply(id=other, tick_in_s=2.0), 0)
    deliver(ControlReply(id=one, tick_in_s=1.0), 0)
    replies = [await box.wait(each, 60.0) for each in (one, other)]
    assert [reply.tick_in_s for reply in replies if reply] == [1.0, 2.0]


async def test_what_does_not_come_in_time_is_none_and_later_dropped(box: Mailbox) -> None:
    box.expect("m")
    assert await box.wait("m", 0.001) is None
    deliver(ControlReply(id="m"), 0)
    assert box._waiting == {}


async def test_unknown_repeated_and_unasked_replies_are_dropped(box: Mailbox) -> None:
    box.expect("m")
    for message_id in ("", "never sent", "m", "m"):
        deliver(ControlReply(id=message_id), 0)
    assert await box.wait("m", 60.0) is not None


async def test_listeners_hear_every_reply_with_its_engine(box: Mailbox) -> None:
    heard: list[tuple[str, int]] = []
    box.listen(lambda reply, engine_index: heard.append((reply.id, engine_index)))
    deliver(ControlReply(id=""), 3)
    deliver(ControlReply(id="x"), 0)
    assert heard == [("", 3), ("x", 0)]


def test_without_a_plugin_replies_are_dropped() -> None:
    activate(None)
    deliver(ControlReply(id="m"), 0)


def test_a_fault_does_not_reach_who_delivers(
    box: Mailbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(reply: ControlReply, engine_index: int) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(mailbox, "_has_logged", False)
    monkeypatch.setattr(mailbox.logger, "propagate", True)
    box.listen(fail)
    for _ in range(3):
        deliver(ControlReply(id="m"), 0)
    assert [record.message for record in caplog.records].count(
        "agentkv: a reply of the engine was dropped (logged once)"
    ) <= 1
