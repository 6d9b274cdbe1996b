"""What the tags of a request say, whoever's they are.

What: reads our own tags from every carrier, and all rows of `dialect_table`. Why: a hint that is
dropped on the way helps nobody, so that each is counted by where it came from. Where: the endpoint
plugin hands what it learns here to the engine. Read only: a hint reaches neither the prompt nor a
block's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentkv.events import TAG_KEY, read_tag
from agentkv.watch.dialect_table import (
    DIALECTS,
    WISH,
    Dialect,
    Json,
    Meaning,
    encodable,
    object_of,
)


@dataclass(frozen=True, slots=True)
class Hints:
    """What the tags of one request say.

    `seen`: the rows of the table that the request spoke. `ignored`: keys of theirs that are
    unknown, or whose value was not understood. `wishes`: those that are not followed.
    """

    session_id: str | None = None
    tool: str | None = None
    command: str | None = None
    expected_wait_s: float | None = None
    timeout_s: float | None = None
    last_turn: bool = False
    seen: tuple[str, ...] = ()
    ignored: int = 0
    wishes: int = 0


HEADER_PREFIX: Final = "x-agentkv-"


def read_dialects(body: Json | None, headers: Mapping[str, str]) -> Hints:
    """All hints of a request; of two dialects that disagree the one higher in the table wins.

    Never raises, never changes the body.
    """
    reading = _Reading()
    body = body if isinstance(body, Mapping) else {}
    for name, carried in _own_carriers(body, headers).items():
        reading.add_own(name, carried)
    for dialect in DIALECTS:
        reading.add(dialect, body)
    return Hints(
        **reading.values,
        seen=tuple(reading.seen),
        ignored=reading.num_ignored,
        wishes=reading.num_wishes,
    )


@dataclass(slots=True)
class _Reading:
    """The hints of one request so far."""

    values: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    num_ignored: int = 0
    num_wishes: int = 0

    def add_own(self, name: str, carried: Json) -> None:
        tag, problems = read_tag(carried, carried)
        said = {key: encodable(getattr(tag, key)) for key in tag.__slots__}
        said = {
            key: value for key, value in said.items() if value is not None and value is not False
        }
        if said or problems:
            self.seen.append(name)
        self.num_ignored += len(problems)
        self.values = {**said, **self.values}

    def add(self, dialect: Dialect, body: Json) -> None:
        said: dict[str, Any] = {}
        is_spoken = False
        for found in dialect.find(body):
            known = [key for key in dialect.keys if key in found]
            is_spoken = is_spoken or bool(known)
            if not dialect.is_shared:
                self.num_ignored += len(found) - len(known)
            for key in known:
                self._read(dialect.keys[key], found[key], said)
        if is_spoken:
            self.seen.append(dialect.name)
        self.values = {**said, **self.values}

    def _read(self, meaning: Meaning | None, value: Any, said: dict[str, Any]) -> None:
        self.num_wishes += meaning is WISH
        if meaning is None or meaning is WISH or value is None:
            return
        name, parse = meaning
        parsed = parse(value)
        if parsed is None:
            self.num_ignored += 1
        else:
            said.setdefault(name, parsed)


def _own_carriers(body: Json, headers: Mapping[str, str]) -> dict[str, Json]:
    """Where a tag of our own may be, each in a form that `read_tag` understands."""
    sent = {
        f"{TAG_KEY}.{name.lower().removeprefix(HEADER_PREFIX).replace('-', '_')}": value
        for name, value in headers.items()
        if name.lower().startswith(HEADER_PREFIX)
    }
    return {
        "agentkv/kv_transfer_params": object_of(body.get("kv_transfer_params")),
        "agentkv/vllm_xargs": object_of(body.get("vllm_xargs")),
        "agentkv/body": {TAG_KEY: body[TAG_KEY]} if TAG_KEY in body else {},
        "agentkv/header": sent,
        "agentkv/metadata": object_of(body.get("metadata")),
    }
