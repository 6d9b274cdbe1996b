"""A client may choose the id of its request (X-Request-Id), and so that of another tenant's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Rig, blocks, prompt
from kit.control import tell

from agentkv.scope import scope_of_salt
from agentkv.signals import Event, EventResult, Status

RigFactory = Callable[..., Rig]
SALTS = ("victim", "thief")


def say(rig: Rig, kind: str, salt: str, **fields: str) -> EventResult:
    event = Event.model_validate({"event": kind, "request_id": "chatcmpl-7", **fields})
    message_id = tell(rig, event, scope=scope_of_salt(salt))
    rig.settle()
    (result,) = rig.replies[message_id].results
    return result


@pytest.mark.parametrize("order", [SALTS, SALTS[::-1]])
def test_a_tenant_that_uses_anothers_reply_id_neither_hides_nor_steers_its_session(
    make_rig: RigFactory, order: tuple[str, str]
) -> None:
    rig = make_rig()
    for number, salt in enumerate(order):
        rig.run(f"chatcmpl-7-0000000{number}", prompt(1, blocks(4)), cache_salt=salt)
    for salt in order:
        assert say(rig, "pause", salt, tool=f"of-{salt}").status is Status.ACCEPTED
    tools = {s.key.scope: s.pause.tag.tool for s in rig.controller.sessions}
    assert tools == {scope_of_salt(salt): f"of-{salt}" for salt in SALTS}
    assert say(rig, "end", "thief").status is Status.ACCEPTED
    assert say(rig, "end", "thief").status is Status.UNKNOWN
    assert [s.key.scope for s in rig.controller.sessions] == [scope_of_salt("victim")]
