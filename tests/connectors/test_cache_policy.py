"""Which DRAM blocks go first: worthless ones, then the least recently used, arrived ones last."""

from collections.abc import Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from agentkv.connectors.cache_policy import AgentKVCachePolicy

CONTEXT = ReqContext(req_id="r")


def _key(number: int) -> OffloadKey:
    return make_offload_key(bytes([number]) * 32, 0)


def _policy(num_chunks: int = 6) -> AgentKVCachePolicy:
    """Chunks 0, 1, ... stored in this order, all idle."""
    policy = AgentKVCachePolicy(cache_capacity=num_chunks)
    for number in range(num_chunks):
        chunk = ChunkStatus(number)
        chunk.ref_cnt = 0
        policy.insert(_key(number), chunk)
    return policy


def _evict(policy: LRUCachePolicy, count: int, protected: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    victims = policy.evict(count, {_key(number) for number in protected})
    assert victims is not None
    return [chunk.chunk_id for _, chunk in victims]


def test_with_nothing_marked_it_is_vllms_lru() -> None:
    ours, theirs = _policy(), LRUCachePolicy(6)
    for number in range(6):
        chunk = ChunkStatus(number)
        chunk.ref_cnt = 0
        theirs.insert(_key(number), chunk)
    for policy in (ours, theirs):
        policy.touch([_key(1), _key(0)], CONTEXT)
    assert _evict(ours, 5) == _evict(theirs, 5)


def test_worthless_blocks_go_first_in_the_order_in_which_they_were_marked() -> None:
    policy = _policy()
    assert policy.mark_worthless([_key(4), _key(3), _key(99)]) == 2
    policy.mark_worthless([_key(5)])
    assert _evict(policy, 4) == [4, 3, 5, 0]


def test_a_worthless_block_that_is_used_again_is_worth_something_again() -> None:
    policy = _policy()
    policy.mark_worthless([_key(4)])
    assert policy.is_worthless(_key(4))
    policy.touch([_key(4)], CONTEXT)
    assert not policy.is_worthless(_key(4))
    assert _evict(policy, 5) == [0, 1, 2, 3, 5]


def test_a_block_marked_while_it_is_copied_goes_first_once_it_is_idle() -> None:
    policy = _policy()
    policy.mark_non_evictable(_key(5))
    policy.mark_worthless([_key(5)])
    assert _evict(policy, 1) == [0]
    policy.mark_evictable(_key(5))
    assert _evict(policy, 1) == [5]


def test_a_block_that_is_being_copied_is_not_counted_as_expendable() -> None:
    """Counted on, it would have the only copy of another block evicted in its place."""
    policy = _policy(4)
    policy.insert(_key(4), ChunkStatus(4))  # its store is under way
    policy.make_ready([_key(3), _key(4)])
    assert policy.num_expendable == 1
    policy.chunks[_key(4)].ref_cnt = 0
    policy.mark_evictable(_key(4))
    assert policy.num_expendable == 2
    policy.mark_non_evictable(_key(3))
    assert policy.num_expendable == 1
    assert _evict(policy, 1) == [4] and policy.num_expendable == 0
    policy.remove(_key(3))
    assert policy.num_expendable == 0
    policy.make_ready([_key(2)])
    policy.mark_non_evictable(_key(2))
    policy.clear()
    assert policy.num_expendable == 0


def test_arrived_turns_blocks_go_last() -> None:
    policy = _policy()
    policy.protect([_key(0), _key(1), _key(2)])
    assert _evict(policy, 3) == [3, 4, 5]
    assert _evict(policy, 2) == [2, 1], "but they do go, tail first, when nothing else is left"


def test_of_two_arrived_turns_the_later_one_loses_its_blocks_first() -> None:
    policy = _policy()
    policy.protect([_key(0), _key(1)])
    policy.protect([_key(2), _key(3)])
    assert _evict(policy, 6) == [4, 5, 3, 2, 1, 0]


def test_only_as_many_arrived_blocks_go_as_nothing_else_can_replace() -> None:
    policy = _policy()
    policy.protect([_key(0), _key(1), _key(2), _key(3)])
    assert _evict(policy, 3) == [4, 5, 3]


def test_a_block_stored_while_its_turn_waits_is_protected_too() -> None:
    policy = _policy(5)
    policy.protect([_key(7)])
    for number in (7, 8):
        chunk = ChunkStatus(number)
        policy.insert(_key(number), chunk)
        chunk.ref_cnt = 0
        policy.mark_evictable(_key(number))
    policy.touch([_key(7)], CONTEXT)
    assert _evict(policy, 7) == [0, 1, 2, 3, 4, 8, 7]


def test_even_a_worthless_block_is_kept_for_a_turn_that_has_arrived() -> None:
    policy = _policy()
    policy.mark_worthless([_key(5)])
    policy.protect([_key(5)])
    assert _evict(policy, 5) == [0, 1, 2, 3, 4]


def test_a_block_is_kept_until_the_last_of_its_waiting_turns_has_run() -> None:
    policy = _policy()
    policy.protect([_key(0)])
    policy.protect([_key(0)])
    policy.unprotect([_key(0)])
    assert _evict(policy, 1) == [1]
    policy.unprotect([_key(0)])
    assert _evict(policy, 5) == [2, 3, 4, 5, 0], "now it is the most recently used one"


def test_what_vllm_protects_is_never_evicted() -> None:
    policy = _policy()
    policy.protect([_key(0), _key(1)])
    assert _evict(policy, 2, protected={2, 3}) == [4, 5]
    assert policy.evict(3, {_key(2), _key(3)}) is None


def test_an_eviction_that_cannot_be_satisfied_changes_nothing() -> None:
    policy = _policy()
    policy.protect([_key(0)])
    policy.mark_worthless([_key(3)])
    before = dict(policy.chunks)
    assert policy.evict(7, set()) is None
    assert policy.evict(6, {_key(1)}) is None
    assert policy.chunks == before and policy._evictable == before.keys()
    assert _evict(policy, 6) == [3, 1, 2, 4, 5, 0]


def test_clearing_forgets_every_mark() -> None:
    policy = _policy()
    policy.protect([_key(0)])
    policy.mark_worthless([_key(1)])
    policy.clear()
    assert not policy.chunks and not policy._arrived and policy.evict(1, set()) is None


def test_the_block_in_a_chunk_can_be_named() -> None:
    policy = _policy()
    assert policy.key_of_chunk(3) == _key(3) and policy.key_of_chunk(77) is None


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["mark_worthless", "protect", "unprotect", "touch", "evict", "pin"]),
        st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_an_eviction_never_takes_what_is_ranked_higher_while_lower_is_left(
    operations: list[tuple[str, list[int]]],
) -> None:
    policy = _policy(10)
    held: dict[int, int] = dict.fromkeys(range(10), 0)
    for name, numbers in operations:
        if name == "evict":
            _check_eviction(policy, len(numbers), held)
        else:
            _apply(policy, name, numbers, held)
        assert policy._ranks.keys() == policy.chunks.keys()


def _apply(policy: AgentKVCachePolicy, name: str, numbers: list[int], held: dict[int, int]) -> None:
    if name == "unprotect":
        numbers = [number for number in numbers if held[number]]
    keys = [_key(number) for number in numbers]
    if name == "pin":
        for key in policy._evictable & set(keys):
            policy.mark_non_evictable(key)
            policy.mark_evictable(key)
    elif name == "touch":
        policy.touch(keys, CONTEXT)
    else:
        getattr(policy, name)(keys)
    for number in numbers:
        held[number] += {"protect": 1, "unprotect": -1}.get(name, 0)


def _check_eviction(policy: AgentKVCachePolicy, count: int, held: dict[int, int]) -> None:
    before = dict(policy.chunks)
    worthless = {key for key in before if policy.is_worthless(key)}
    arrived = {key for key in before if held[before[key].chunk_id]}
    victims = policy.evict(count, set())
    if victims is None:
        assert len(before) < count and policy.chunks == before
        return
    gone = {key for key, _ in victims}
    assert len(gone) == count and policy.chunks.keys() == before.keys() - gone
    if gone & arrived:
        assert before.keys() - arrived <= gone
    if gone - worthless - arrived:
        assert worthless - arrived <= gone


@pytest.mark.parametrize("count", [0, 1, 3])
def test_exactly_as_many_as_asked_for_are_evicted(count: int) -> None:
    policy = _policy()
    assert len(_evict(policy, count)) == count and len(policy.chunks) == 6 - count


def test_each_use_is_shown_once_newest_first() -> None:
    policy = _policy(4)
    policy.make_ready([_key(2)])
    policy.protect([_key(1)])
    assert list(policy.take_fresh()) == [_key(3), _key(0)]
    assert list(policy.take_fresh()) == []
    policy.unprotect([_key(1)])
    policy.touch([_key(2), _key(0)], CONTEXT)
    policy.remove(_key(0))
    assert list(policy.take_fresh()) == [_key(2), _key(1)]


def test_what_must_stay_does_not_count_as_room() -> None:
    """Chunk 5 is ready, but it is offered itself: who makes room is told."""
    policy = _policy()
    policy.make_ready([_key(5)])
    asked: list[tuple[int, int, int]] = []

    def make_room(num_chunks: int, besides: Set[OffloadKey]) -> None:
        asked.append((num_chunks, len(besides), policy.num_expendable_of(besides)))
        policy.make_ready([_key(3), _key(4)])

    policy.before_evict = make_room
    assert _evict(policy, 2, protected={5, 0}) == [3, 4]
    assert asked == [(2, 2, 1)]


def test_a_ready_block_that_an_arrived_turn_wants_is_no_room() -> None:
    policy = _policy(3)
    policy.make_ready([_key(0), _key(1)])
    policy.protect([_key(0)])
    assert policy.num_expendable == 1 == policy.num_expendable_of([_key(0), _key(1), _key(9)])
    assert [policy.is_sole(_key(number)) for number in range(3)] == [False, False, True]
