"""An entry's commands, and what their replies say of it.

What: `EntryCodec` knows the parts of an entry and the commands for each; it judges what a load
brought. Where: the store runs these commands.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentkv.tiers.base import Entry
from agentkv.tiers.redis.commands import Command, Layout, LoadPart, Refusal, RenewPart, StorePart
from agentkv.tiers.redis.replies import ErrorReply, Mark
from agentkv.tiers.redis.values import KeySpace, split


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an entry was not loaded; `name` is empty if that is counted already."""

    name: str
    is_damage: bool = False  # what lies there is of no use to anyone


class EntryCodec:
    """For the entries of one namespace and size. Immutable."""

    def __init__(self, digest: str, block_bytes: int, value_bytes: int, ttl_ms: int) -> None:
        self.block_bytes = block_bytes
        self._parts = split(block_bytes, value_bytes)
        self._keys = KeySpace(digest, self._parts)
        self._layout = Layout(block_bytes, len(self._parts), ttl_ms)
        self.num_parts = len(self._parts)
        self.pattern = self._keys.pattern
        self.entry_pattern = self._keys.entry_pattern  # one key per entry

    def fits(self, entry: Entry) -> bool:
        """Whether an entry's memory is as the contract has it."""
        data = entry.data
        is_flat = data.ndim == 1 and data.format == "B" and data.contiguous
        return is_flat and data.nbytes == self.block_bytes

    def exist(self, keys: Sequence[bytes]) -> Command:
        """Answered with the number of parts that are there, of all these entries together."""
        part_keys = [part_key for key in keys for part_key in self._keys.part_keys(key)]
        return Command("EXISTS", *part_keys, key=part_keys[0])

    def drop(self, key: bytes) -> Command:
        """Answered with the number of parts that were there."""
        keys = self._keys.part_keys(key)
        return Command("UNLINK", *keys, key=keys[0])

    def renew(self, key: bytes) -> list[RenewPart]:
        """Each answered with 1 if the part was there; it lives its full time from now on."""
        return [RenewPart(part_key, self._layout) for part_key in self._keys.part_keys(key)]

    def stores(self, entries: Mapping[int, Entry]) -> dict[int, list[StorePart]]:
        """An entry is there as soon as its last part is: questions and loads ask for all."""
        refusal = Refusal()
        stores: dict[int, list[StorePart]] = {}
        for i, entry in entries.items():
            write = secrets.randbits(64)
            named = zip(self._keys.part_keys(entry.key), self._parts, strict=True)
            stores[i] = [
                StorePart(key, part, self._layout, entry.data, write, refusal)
                for key, part in named
            ]
        return stores

    def loads(self, entry: Entry) -> list[LoadPart]:
        """Each fills its slice of the entry's memory."""
        named = zip(self._keys.part_keys(entry.key), self._parts, strict=True)
        return [LoadPart(key, part, self._layout, entry.data) for key, part in named]

    def fault(self, loads: Sequence[LoadPart]) -> Fault | None:
        """What is wrong with an entry that was to be loaded; None if it is there and right."""
        write = loads[0].write
        if write is not None and all(load.write == write for load in loads):
            return None  # Only what was read whole and verified has the number of a write.
        replies = [load.reply for load in loads]
        if any(isinstance(r, ErrorReply) and r.code == "WRONGTYPE" for r in replies):
            return Fault("", is_damage=True)
        if any(reply is Mark.WRONG_LENGTH for reply in replies):
            return Fault("wrong_length", is_damage=True)
        if any(load.reply is Mark.FILLED and load.write is None for load in loads):
            return Fault("checksum", is_damage=True)
        if any(reply is None for reply in replies):
            return Fault("missing")
        if any(reply is not Mark.FILLED for reply in replies):
            return Fault("")
        return Fault("mixed_writes", is_damage=True)
