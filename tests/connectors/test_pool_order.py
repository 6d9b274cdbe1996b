"""The order of vLLM's free queue: what is moved where, and that nothing is ever taken from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.pool import FULL, Pool

from agentkv.connectors.layout import Group

WINDOW = Group(group_id=1, per_block=1, per_chunk=1, window=3)
COARSE = Group(group_id=1, per_block=4, per_chunk=4, window=1)


def test_dead_blocks_go_to_the_very_front_the_first_ref_foremost() -> None:
    pool = Pool(6)
    old, new = pool.cache(1, 3), pool.cache(2, 3)
    assert pool.queue == [*old[::-1], *new[::-1]]
    assert pool.order.discard(pool.refs(2)) == (3, [])
    assert pool.queue == [*new[::-1], *old[::-1]]


def test_given_up_blocks_go_behind_those_given_up_before_and_ahead_of_all_others() -> None:
    pool = Pool(12)
    first, second, third = (pool.cache(seed, 4) for seed in (1, 2, 3))
    pool.order.give_up(pool.refs(3))
    pool.order.give_up(pool.refs(2))
    assert pool.queue == [*third[::-1], *second[::-1], *first[::-1]]
    pool.order.discard(pool.refs(1))
    assert pool.queue == [*first[::-1], *third[::-1], *second[::-1]]


def test_given_up_blocks_go_behind_empty_ones() -> None:
    pool = Pool(8)
    chain = pool.cache(1, 3)
    empty = [block_id for block_id in pool.queue if block_id not in chain]
    pool.order.give_up(pool.refs(1))
    assert pool.queue == [*empty, *chain[::-1]]


def test_what_was_given_up_is_not_moved_again() -> None:
    pool = Pool(4)
    pool.cache(1, 4)
    assert pool.order.give_up(pool.refs(1)) == (4, [])
    assert pool.order.give_up(pool.refs(1)) == (0, [])


def test_protected_blocks_go_to_the_very_back_and_a_chains_tail_is_reused_before_its_head() -> None:
    pool = Pool(8)
    old, new = pool.cache(1, 4), pool.cache(2, 4)
    assert pool.order.protect([pool.refs(1)]) == [4]
    assert pool.queue == [*new[::-1], *old[::-1]]


def test_of_several_turns_the_first_is_rearmost_and_shared_blocks_are_its_own() -> None:
    pool = Pool(12)
    first, second, third = (pool.cache(seed, 4) for seed in (1, 2, 3))
    both = [(6, pool.chains[2][3]), (5, pool.chains[2][2]), *pool.refs(1)]
    assert pool.order.protect([pool.refs(1), both]) == [4, 2]
    assert pool.queue[-6:] == [second[3], second[2], *first[::-1]]
    assert set(pool.queue[:6]) == {*third, *second[:2]}


def test_blocks_in_use_are_never_moved() -> None:
    pool = Pool(8)
    pool.cache(1, 4)
    other = pool.cache(2, 4)
    used = pool.pool.get_cached_block(pool.chains[1][1], [0])
    assert used is not None
    pool.pool.touch(used)
    assert pool.order.discard(pool.refs(1)) == (3, [(2, pool.chains[1][1])])
    assert pool.order.protect([pool.refs(1)]) == [3]
    assert used[0].block_id not in pool.queue and used[0].ref_cnt == 1
    assert set(other) <= set(pool.queue)


def test_unknown_blocks_are_ignored() -> None:
    pool = Pool(4)
    strangers = [(1, b"x" * 32), (2, b"y" * 32)]
    assert pool.order.discard(strangers) == (0, [])
    assert pool.order.give_up(strangers) == (0, [])
    assert pool.order.protect([strangers, []]) == [0, 0]
    assert len(pool.queue) == 4


def test_the_front_is_counted_by_worth_up_to_the_limit() -> None:
    pool = Pool(14)
    for seed in (1, 2, 3):
        pool.cache(seed, 4)
    assert pool.order.count_front(10) == (2, 2), "two blocks are empty"
    pool.order.give_up(pool.refs(2))
    assert pool.order.count_front(10) == (2, 6)
    pool.order.discard(pool.refs(1))
    assert pool.order.count_front(14) == (6, 10)
    assert pool.order.count_front(5) == (5, 5) and pool.order.count_front(0) == (0, 0)


def test_a_reused_block_is_no_longer_what_was_given_up() -> None:
    pool = Pool(4)
    pool.cache(1, 4)
    pool.order.give_up(pool.refs(1))
    pool.cache(2, 4)
    assert pool.order.count_front(4) == (0, 0)


@pytest.mark.parametrize("method", ["keep", "protect"])
def test_a_block_wanted_again_is_no_longer_given_up(method: str) -> None:
    pool = Pool(4)
    pool.cache(1, 4)
    pool.order.give_up(pool.refs(1))
    getattr(pool.order, method)([pool.refs(1)] if method == "protect" else pool.refs(1))
    assert pool.order.count_front(4) == (0, 0)


def test_after_a_reset_nothing_counts_as_given_up() -> None:
    pool = Pool(4)
    pool.cache(1, 4)
    pool.order.discard(pool.refs(1))
    pool.order.clear()
    assert pool.order.count_front(4) == (0, 0)


def test_the_cached_depth_ends_at_the_first_gap() -> None:
    pool = Pool(8)
    chain = pool.cache(1, 6)
    assert pool.order.cached_depth(pool.chains[1]) == 6
    assert pool.order.cached_depth([*pool.chains[1], b"z" * 32]) == 6
    pool.pool.evict_blocks({chain[3]})
    assert pool.order.cached_depth(pool.chains[1]) == 3
    assert pool.order.cached_depth([b"z" * 32]) == 0 and pool.order.cached_depth([]) == 0


def test_a_window_needs_only_the_blocks_before_the_end_of_the_hit() -> None:
    pool = Pool(20, (FULL, WINDOW))
    pool.cache(1, 8)
    window = pool.cache(1, 8, group=1)
    pool.pool.evict_blocks(set(window[:5]))
    assert pool.order.cached_depth(pool.chains[1]) == 8
    pool.pool.evict_blocks({window[5]})
    assert pool.order.cached_depth(pool.chains[1]) == 0, "no three window blocks are left in a row"


def test_the_hit_ends_where_the_window_is_whole() -> None:
    pool = Pool(20, (FULL, WINDOW))
    pool.cache(1, 8)
    window = pool.cache(1, 8, group=1)
    pool.pool.evict_blocks({window[6]})
    assert pool.order.cached_depth(pool.chains[1]) == 6


def test_a_coarse_group_counts_at_its_own_block_ends_only() -> None:
    pool = Pool(20, (FULL, COARSE))
    pool.cache(1, 8)
    coarse = pool.cache(1, 8, group=1, per_block=4)
    assert pool.order.cached_depth(pool.chains[1]) == 8
    assert pool.order.discard(pool.refs(1)) == (8 + 2, [])
    num_empty = 19 - 8 - 2
    assert set(coarse) <= set(pool.queue[num_empty : num_empty + 10])


def test_blocks_before_the_window_are_not_protected() -> None:
    pool = Pool(16, (FULL, WINDOW))
    full = pool.cache(1, 8)
    window = pool.cache(1, 8, group=1)
    assert pool.order.protect([pool.refs(1)]) == [8 + 3]
    assert set(pool.queue[:5]) == set(window[:5])
    assert set(pool.queue[5:]) == {*full, *window[5:]}


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["cache", "discard", "give_up", "protect", "keep", "touch", "free"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_no_order_of_calls_loses_or_doubles_a_block(operations: list[tuple[str, int]]) -> None:
    pool = Pool(16)
    touched: list[object] = []
    for name, seed in operations:
        if name == "cache":
            if pool.pool.get_num_free_blocks() >= 3:
                pool.cache(seed, 3)
        elif seed not in pool.chains:
            continue
        elif name == "touch":
            found = pool.pool.get_cached_block(pool.chains[seed][0], [0])
            if found:
                pool.pool.touch(found)
                touched.append(found[0])
        elif name == "free":
            if touched:
                pool.pool.free_blocks([touched.pop()])
        else:
            getattr(pool.order, name)([pool.refs(seed)] if name == "protect" else pool.refs(seed))
        free = pool.queue
        assert len(set(free)) == len(free) == 16 - len({id(block) for block in touched})
        worthless, ready = pool.order.count_front(16)
        assert 0 <= worthless <= ready <= len(free)
