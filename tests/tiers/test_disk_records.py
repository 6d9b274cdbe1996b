"""The byte format: what was not written as it is read is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.tiers.disk.records import (
    NO_RECORD,
    PAGE_BYTES,
    RECORD_BYTES,
    DataSums,
    Header,
    Record,
    Shape,
    pack_record,
    unpack_table,
)

NUMBERS = st.integers(0, 2**64 - 1)
RECORDS = st.builds(Record, st.binary(min_size=1, max_size=36), NUMBERS, NUMBERS)


@given(RECORDS, st.integers(0, 10), NUMBERS)
def test_a_record_comes_back(record: Record, slot: int, generation: int) -> None:
    table = NO_RECORD * slot + pack_record(record, slot, generation) + NO_RECORD * 3
    assert list(unpack_table(memoryview(table), generation)) == [(slot, record)]


@given(RECORDS, st.integers(0, RECORD_BYTES - 1), st.integers(1, 255))
def test_a_record_with_one_wrong_byte_is_damaged(record: Record, at: int, change: int) -> None:
    raw = bytearray(pack_record(record, 0, 7))
    raw[at] ^= change
    assert list(unpack_table(memoryview(raw), 7)) == [(0, None)]


@given(RECORDS)
def test_a_record_is_of_its_slot_and_generation_only(record: Record) -> None:
    raw = pack_record(record, 0, 7)
    assert list(unpack_table(memoryview(raw), 8)) == [(0, None)]
    assert list(unpack_table(memoryview(NO_RECORD + raw), 7)) == [(1, None)]


def test_keys_of_zeros_keep_their_length() -> None:
    for length in (1, 35, 36):
        record = Record(bytes(length), 0, 0)
        table = memoryview(pack_record(record, 0, 0))
        assert list(unpack_table(table, 0)) == [(0, record)]


def test_a_header_comes_back_and_a_damaged_one_does_not() -> None:
    header = Header(Shape(524288, 2000), 2**64 - 1, "0123456789abcdef" * 2)
    page = bytearray(header.pack())
    assert len(page) == PAGE_BYTES
    assert Header.unpack(memoryview(page)) == header
    for at in range(72):
        page[at] ^= 1
        assert Header.unpack(memoryview(page)) is None
        page[at] ^= 1
    assert Header.unpack(memoryview(bytes(PAGE_BYTES))) is None


@given(st.integers(1, 1 << 22), st.integers(0, 1 << 32))
def test_the_largest_shape_that_fits_is_found(block_bytes: int, disk_bytes: int) -> None:
    shape = Shape.fitting(block_bytes, disk_bytes)
    if shape is None:
        assert Shape(block_bytes, 1).disk_bytes > disk_bytes
        return
    assert shape.disk_bytes <= disk_bytes
    # Rounding to pages may leave a few slots' worth unused where slots are small.
    assert Shape(block_bytes, shape.num_slots + 3).disk_bytes > disk_bytes
    assert shape.data_offset % PAGE_BYTES == shape.slot_bytes % PAGE_BYTES == 0
    assert shape.table_bytes >= shape.num_slots * RECORD_BYTES


@pytest.mark.parametrize("change", ["data", "key", "namespace"])
def test_a_sum_is_of_data_key_and_namespace(change: str) -> None:
    data = memoryview(b"some bytes")
    first = DataSums("n1").of(b"key", data)
    second = DataSums("n2" if change == "namespace" else "n1").of(
        b"yek" if change == "key" else b"key",
        memoryview(b"other bytes") if change == "data" else data,
    )
    assert first != second
