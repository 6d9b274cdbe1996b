"""What DRAM drops first, and what the tiers below it get."""

from collections.abc import Collection

from agentkv.sim.dram import Dram, SlowTier


def _chain(name: str, size: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(size)]


def _held(dram: Dram, *chains: list[bytes]) -> list[int]:
    return [sum(block in dram.blocks for block in chain) for chain in chains]


def test_the_chain_used_longest_ago_goes_first() -> None:
    dram = Dram(6)
    one, two, three = (_chain(name, 3) for name in "abc")
    for chain in (one, two):
        dram.store(chain)
    dram.touch(one)
    dram.store(three)
    assert _held(dram, one, two, three) == [3, 0, 3]


def test_worthless_goes_before_ready_before_others_before_arrived() -> None:
    dram = Dram(8)
    arrived, other, ready, dead = (_chain(name, 2) for name in "abcd")
    for chain in (arrived, other, ready, dead):
        dram.store(chain)
    dram.protect(arrived)
    dram.make_ready(ready)
    dram.mark_worthless(dead)
    order = []
    for _ in range(4):
        dram.evict(2)
        order.append(_held(dram, arrived, other, ready, dead))
    assert order == [[2, 2, 2, 0], [2, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]


def test_what_was_ready_stays_once_it_is_needed() -> None:
    dram = Dram(4)
    one, two = _chain("a", 2), _chain("b", 2)
    dram.store(one)
    dram.store(two)
    dram.make_ready(two)
    dram.make_needed(two)
    dram.evict(2)
    assert _held(dram, one, two) == [0, 2]


def test_a_chain_too_large_is_stored_from_its_root_as_far_as_it_fits() -> None:
    dram = Dram(3)
    chain = _chain("a", 5)
    dram.store(chain)
    assert dram.hit_depth(chain, 0, 5) == 3


def test_what_is_dropped_goes_to_the_tier_below_and_counts_as_a_hit() -> None:
    ssd = SlowTier("ssd", 2, 1e9, 0.001)
    dram = Dram(3, (ssd,))
    lost: list[bytes] = []
    dram.after_evict = lost.extend
    one, two = _chain("a", 3), _chain("b", 3)
    dram.store(one)
    dram.touch(one)
    dram.store(two)
    assert len(ssd.blocks) == 2
    assert lost == [one[2]]
    assert dram.hit_depth(one, 0, 3) == 2
    assert ssd.load_s(1e9) == 1.001


def test_worthless_blocks_are_not_handed_down() -> None:
    ssd = SlowTier("ssd", 9, 1e9, 0.0)
    dram = Dram(2, (ssd,))
    dead = _chain("a", 2)
    dram.store(dead)
    dram.mark_worthless(dead)
    dram.store(_chain("b", 2))
    assert not ssd.blocks


def test_each_use_is_shown_once_newest_first() -> None:
    dram = Dram(9)
    one, two, three = (_chain(name, 2) for name in "abc")
    for chain in (one, two, three):
        dram.offer(chain)
    dram.make_ready(two)
    assert list(dram.take_fresh()) == [three[1], three[0], one[1], one[0]]
    assert list(dram.take_fresh()) == []
    dram.touch(two)
    dram.protect(one)
    dram.unprotect(one)
    dram.evict(1)
    assert set(dram.take_fresh()) == {*one, *two} & dram.blocks.keys()


def test_what_must_stay_does_not_count_as_room() -> None:
    dram = Dram(6)
    ready, kept, other = (_chain(name, 2) for name in "abc")
    for chain in (ready, kept, other):
        dram.offer(chain)
    dram.make_ready(kept)
    asked: list[tuple[int, int]] = []

    def make_room(num_blocks: int, besides: Collection[bytes]) -> None:
        asked.append((num_blocks, dram.num_expendable_of(besides)))
        dram.make_ready(ready)

    dram.before_evict = make_room
    assert dram.offer([*kept, *_chain("d", 2)])
    assert asked == [(2, 2)]
    assert _held(dram, ready, kept, other) == [0, 2, 2]
