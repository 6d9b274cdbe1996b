"""Blocks of the pool: none is lost, and they are reused in vLLM's order."""

import random

import pytest

from agentkv.sim.pool import Pool


def _chain(name: str, size: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(size)]


def _play(pool: Pool, chain: list[bytes]) -> int:
    depth = pool.cached_depth(chain, len(chain))
    pool.take(chain[:depth], chain[depth:], 0)
    pool.release(chain, 0)
    return depth


def test_a_chain_loses_its_tail_before_its_head() -> None:
    pool = Pool(6)
    old, new = _chain("a", 4), _chain("b", 4)
    _play(pool, old)
    _play(pool, new)
    assert pool.cached_depth(old, 4) == 2
    assert pool.cached_depth(new, 4) == 4


def test_given_up_blocks_go_before_older_ones_and_dead_ones_before_those() -> None:
    pool = Pool(9)
    chains = [_chain(name, 3) for name in "abc"]
    for chain in chains:
        _play(pool, chain)
    assert pool.give_up(reversed(chains[1])) == 3
    assert pool.discard(reversed(chains[2])) == []
    assert pool.count_front(9) == (3, 6)
    pool.reserve(3)
    assert [pool.cached_depth(chain, 3) for chain in chains] == [3, 3, 0]
    pool.reserve(3)
    assert [pool.cached_depth(chain, 3) for chain in chains] == [3, 0, 0]
    pool.check()


def test_protected_blocks_are_reused_last() -> None:
    pool = Pool(6)
    first, second = _chain("a", 3), _chain("b", 3)
    _play(pool, first)
    _play(pool, second)
    pool.give_up(reversed(first))
    assert pool.protect(reversed(first)) == 3
    pool.reserve(3)
    assert (pool.cached_depth(first, 3), pool.cached_depth(second, 3)) == (3, 0)


def test_a_block_used_by_two_turns_is_free_after_both() -> None:
    pool = Pool(4)
    chain = _chain("a", 2)
    pool.take([], chain, 0)
    pool.take(chain, [], 1)
    pool.release(chain, 0)
    assert pool.num_free == 1
    pool.release(chain, 1)
    assert pool.num_free == 4
    pool.check()


def test_it_says_when_blocks_do_not_suffice() -> None:
    pool = Pool(4)
    chain = _chain("a", 3)
    _play(pool, chain)
    assert pool.can_take(chain, 1)
    assert not pool.can_take(chain, 2)


@pytest.mark.parametrize("seed", range(5))
def test_no_block_is_lost_whatever_happens(seed: int) -> None:
    numbers, pool = random.Random(seed), Pool(40)
    chains = [_chain(f"{name}-", numbers.randrange(1, 15)) for name in range(12)]
    running: list[tuple[list[bytes], int]] = []
    reserved: list[list[bytes]] = []
    for _ in range(600):
        chain = numbers.choice(chains)
        act = numbers.randrange(7)
        depth = pool.cached_depth(chain, len(chain))
        if act == 0 and pool.can_take(chain[:depth], len(chain) - depth + 1):
            pool.take(chain[:depth], chain[depth:], 1)
            running.append((chain, 1))
        elif act == 1 and running:
            pool.release(*running.pop(numbers.randrange(len(running))))
        elif act == 2:
            pool.give_up(reversed(chain))
        elif act == 3:
            pool.discard(reversed(chain))
        elif act == 4:
            pool.protect(reversed(chain))
        elif act == 5 and pool.num_free >= len(chain):
            pool.reserve(len(chain))
            reserved.append(chain)
        elif reserved:
            pool.fill_reserved(reserved.pop(), is_paused=False)
        pool.check()
