"""Whose a slot is, at every moment."""

from __future__ import annotations

import itertools
import random

from agentkv.tiers.disk.index import Holding, Place, SlotIndex


def index_of(num_slots: int, *keys: bytes) -> SlotIndex:
    """An index with one segment and entries under these keys."""
    index = SlotIndex()
    index.add_slots(0, num_slots)
    for reservation in index.reserve(keys).mine:
        assert index.commit(reservation, data_sum=1)
    return index


def test_neighbours_in_a_call_are_neighbours_on_the_disk() -> None:
    index = index_of(8, b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h")
    removed, _ = index.remove([b"f", b"c", b"d", b"e"])
    index.unpin(removed)
    reserved = index.reserve([b"1", b"2", b"3", b"4"])
    assert [r.place.slot for r in reserved.mine] == [2, 3, 4, 5]


def test_what_is_pinned_is_not_evicted() -> None:
    index = index_of(3, b"a", b"b", b"c")
    pinned = [h for h in index.pin([b"a", b"b"]) if h]
    reserved = index.reserve([b"x", b"y"])
    assert ([r.key for r in reserved.mine], reserved.num_refused) == ([b"x"], 1)
    assert index.has([b"a", b"b", b"c"]) == [True, True, False]
    index.unpin(pinned)
    assert index.reserve([b"y"]).num_refused == 0


def test_what_is_being_written_is_not_evicted_and_not_yet_there() -> None:
    index = index_of(1)
    (reservation,) = index.reserve([b"a"]).mine
    assert index.has([b"a"]) == [False]
    assert index.reserve([b"b"]) == ([], [], 1)
    assert index.absent([b"a", b"b"]) == [b"b"]
    assert index.reserve([b"a"]) == ([], [reservation], 0)
    index.commit(reservation, 1)
    assert index.has([b"a"]) == [True]
    assert reservation.over.is_set()


def test_the_slot_of_a_removed_entry_is_free_only_when_nobody_reads_it() -> None:
    index = index_of(1, b"a")
    (read,) = index.pin([b"a"])
    removed, _ = index.remove([b"a"])
    index.unpin(removed)
    assert index.num_free == 0
    assert read is not None and read.is_dropped
    index.unpin([read])
    assert index.num_free == 1


def test_a_key_removed_while_it_is_written_does_not_become_an_entry() -> None:
    index = index_of(2)
    (first,) = index.reserve([b"a"]).mine
    assert index.remove([b"a"]) == ([], [first])
    (second,) = index.reserve([b"a"]).mine
    assert not index.commit(first, 1)
    assert index.commit(second, 2)
    index.give_up([first, second])
    assert (len(index), index.num_free) == (1, 1)
    assert first.over.is_set()


def test_dropping_a_damaged_entry_spares_a_newer_one_of_the_same_key() -> None:
    """A66: the cleanup of a failed read must not delete what was stored meanwhile."""
    index = index_of(2, b"a")
    (old,) = index.pin([b"a"])
    assert old is not None
    index.unpin(index.remove([b"a"])[0])
    index.commit(index.reserve([b"a"]).mine[0], 2)
    index.drop([old])
    index.unpin([old])
    assert index.has([b"a"]) == [True]
    assert index.num_free == 1


def test_of_two_records_of_a_key_the_newer_one_counts() -> None:
    index = SlotIndex()
    index.add_slots(0, 3, held={0, 2})
    old, new = Holding(b"a", Place(0, 0), 1), Holding(b"a", Place(0, 2), 2)
    assert index.restore([old, new]) == [old]
    assert index.pin([b"a"]) == [new]
    assert index.num_free == 2


def test_a_lost_segment_takes_its_slots_along() -> None:
    index = index_of(2, b"a", b"b")
    index.add_slots(1, 2)
    (read,) = index.pin([b"a"])
    (reservation,) = index.reserve([b"c"]).mine
    assert reservation.place.segment == 1
    assert index.forget_segment(0) == 2
    index.unpin([read] if read else [])
    assert index.commit(reservation, 1)
    assert (len(index), index.num_free) == (1, 1)
    assert index.forget_segment(1) == 1
    assert (len(index), index.num_free) == (0, 0)


def test_pins_end_in_every_order() -> None:
    """A49: whatever the order in which readers and removers end, the slot is freed once."""
    for order in itertools.permutations(range(4)):
        index = index_of(1, b"a")
        holders = [index.pin([b"a"])[0] for _ in range(3)] + index.remove([b"a"])[0]
        for position, number in enumerate(order):
            assert index.num_free == 0
            holder = holders[number]
            assert holder is not None and holder.pins == 4 - position
            index.unpin([holder])
        assert index.num_free == 1


def test_no_slot_is_lost_or_given_twice() -> None:
    """A50, A51: 50,000 random steps; in the end all room is there, and nothing else is kept."""
    rng = random.Random(7)
    index, keys = index_of(64), [b"%d" % n for n in range(200)]
    open_ones: list[tuple[str, list]] = []
    for _ in range(50_000):
        some = rng.sample(keys, 3)
        step = rng.randrange(5)
        if step == 0:
            open_ones.append(("reserved", index.reserve(some).mine))
        elif step == 1:
            open_ones.append(("pinned", [h for h in index.pin(some) if h]))
        elif step == 2:
            open_ones.append(("pinned", index.remove(some)[0]))
        elif open_ones:
            kind, what = open_ones.pop(rng.randrange(len(open_ones)))
            if kind == "pinned":
                index.unpin(what)
            else:
                if step == 3:  # Else the write failed.
                    for reservation in what:
                        index.commit(reservation, 1)
                index.give_up(what)
    for kind, what in open_ones:
        index.unpin(what) if kind == "pinned" else index.give_up(what)
    assert len(index) + index.num_free == 64
    index.unpin(index.remove_all()[0])
    assert (len(index), index.num_free) == (0, 64)
    assert not index.reserve(keys[:64]).num_refused, "and each slot can be had"
