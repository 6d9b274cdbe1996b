"""Where the engine's replies arrive.

What: matches a reply to the message that waits for it, and tells listeners of every reply.
Why: a control message goes out as a request that is never answered; what the engine has to say
comes back in its statistics, some time later.
Where: filled by the connector's statistics through `deliver`; everything runs on the event loop
thread of the API process. Light to import: whoever delivers may be in a process without a plugin.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

from agentkv.signals import ControlReply

Listener = Callable[[ControlReply, int], None]


class Mailbox:
    """Replies by the id of their message. Owned by the event loop that it is used on.

    `num_unasked`: replies that nobody waited for. The engine has done something, or was told the
    time.
    """

    def __init__(self) -> None:
        self.num_unasked = 0
        self._waiting: dict[str, asyncio.Future[ControlReply]] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every reply and the index of its engine. It must not raise."""
        self._listeners.append(listener)

    async def wait(self, message_id: str, timeout_s: float) -> ControlReply | None:
        """The reply to a message, None if it does not come in time. Call `expect` before."""
        future = self._waiting[message_id]
        try:
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            return None
        finally:
            self.forget(message_id)

    def expect(self, message_id: str) -> None:
        """Keep the reply to this message, which is about to be sent."""
        self._waiting[message_id] = asyncio.get_running_loop().create_future()

    def forget(self, message_id: str) -> None:
        """No longer expect a reply. Harmless for an unknown id."""
        if (future := self._waiting.pop(message_id, None)) is not None:
            future.cancel()

    def take(self, reply: ControlReply, engine_index: int) -> None:
        """A reply has arrived; one that nobody waits for is still told to the listeners."""
        future = self._waiting.get(reply.id)
        if future is None:
            self.num_unasked += 1
        elif not future.done():
            future.set_result(reply)
        for listener in self._listeners:
            listener(reply, engine_index)


def new_message_id() -> str:
    """For a control message and for the request that carries it."""
    return f"agentkv-{uuid.uuid4().hex}"


_active: Mailbox | None = None
_has_logged = False
logger = logging.getLogger("vllm.agentkv")


def activate(mailbox: Mailbox | None) -> None:
    """Make this the mailbox of the process; None: there is none (any more)."""
    global _active
    _active = mailbox


def deliver(reply: ControlReply, engine_index: int) -> None:
    """Hand over a reply of the engine. Cheap; never raises; without a plugin it is dropped."""
    if _active is None:
        return
    try:
        _active.take(reply, engine_index)
    except Exception:  # Raised on, it would end the task that brings every request its tokens.
        global _has_logged
        if not _has_logged:
            _has_logged = True
            logger.exception("agentkv: a reply of the engine was dropped (logged once)")
