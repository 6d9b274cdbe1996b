"""The protection of turns that wait: renewed when the pool gets near them, not at every step."""

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks
from kit.pool import FULL, Pool

from agentkv import metrics
from agentkv.connectors.arrived import ArrivedTurns
from agentkv.connectors.cache_policy import AgentKVCachePolicy
from agentkv.connectors.layout import Group, Layout
from agentkv.metrics import Recorder

RigFactory = Callable[..., Rig]
LAYOUT = Layout((FULL,), tokens_per_hash=16)


class Arrived:
    """Turns 1 and 2 wait with four cached blocks each; blocks of chain 3 were freed after them."""

    def __init__(self, *, is_protecting: bool = True) -> None:
        self.pool = Pool(20)
        self.chains = {seed: self.pool.cache(seed, 4)[::-1] for seed in (1, 2)}
        self.dram = AgentKVCachePolicy(cache_capacity=50)
        self.recorder = Recorder()
        self.turns = ArrivedTurns(self.dram, LAYOUT, self.recorder, is_protecting=is_protecting)
        for seed in (1, 2):
            self.turns.add(self.pool.request(seed, 4, num_new_tokens=40), self.pool.order)
        self.renew(near_blocks=1000)
        self.chains[3] = self.pool.cache(3, 4)[::-1]
        self.turns.note_freed(4)

    def renew(self, near_blocks: int, *, is_short: bool = True) -> None:
        self.turns.renew(self.pool.order, near_blocks=near_blocks, is_short=is_short)


def test_the_first_to_arrive_is_rearmost() -> None:
    arrived = Arrived()
    assert arrived.pool.queue[-12:-4] == [*arrived.chains[2], *arrived.chains[1]]


def test_while_others_can_give_enough_nothing_is_moved() -> None:
    arrived = Arrived()
    before = arrived.pool.queue
    arrived.renew(near_blocks=100, is_short=False)
    assert arrived.pool.queue == before


def test_a_turn_whose_blocks_were_given_up_gets_them_back_at_once() -> None:
    arrived = Arrived()
    arrived.pool.order.give_up(arrived.pool.refs(3))
    arrived.turns.add(arrived.pool.request(3, 4, num_new_tokens=40), arrived.pool.order)
    assert arrived.pool.queue[-4:] == arrived.chains[3]
    assert arrived.pool.order.count_front(20) == (8, 8), "what is empty"


def test_far_from_any_danger_what_was_freed_behind_stays_there() -> None:
    """20 blocks, 8 protected, 4 behind: the next 8 to be reused are none of theirs."""
    arrived = Arrived()
    before = arrived.pool.queue
    arrived.renew(near_blocks=8)
    assert arrived.pool.queue == before


def test_what_was_freed_behind_goes_ahead_when_the_pool_gets_near() -> None:
    arrived = Arrived()
    arrived.renew(near_blocks=9)
    assert arrived.pool.queue[-12:] == [
        *arrived.chains[3],
        *arrived.chains[2],
        *arrived.chains[1],
    ]


def test_what_was_moved_by_others_is_put_right_however_far_the_pool_is() -> None:
    arrived = Arrived()
    arrived.pool.order.discard(arrived.pool.refs(1))
    arrived.turns.rescue(arrived.pool.refs(3))
    arrived.renew(near_blocks=1, is_short=False)
    assert set(arrived.pool.queue[-4:]) != set(arrived.chains[1]), "nothing of theirs was moved"
    arrived.turns.rescue(arrived.pool.refs(1))
    arrived.renew(near_blocks=1, is_short=False)
    assert arrived.pool.queue[-4:] == arrived.chains[1]


def test_it_is_done_once() -> None:
    arrived = Arrived()
    arrived.renew(near_blocks=100)
    num_moved = sum(arrived.recorder.counters.values())
    arrived.renew(near_blocks=100)
    assert sum(arrived.recorder.counters.values()) == num_moved > 0


def test_a_turn_that_has_its_blocks_is_put_last_no_longer() -> None:
    arrived = Arrived()
    assert arrived.turns.remove("r1") and "r1" not in arrived.turns
    assert not arrived.turns.remove("r1")
    arrived.renew(near_blocks=100)
    assert arrived.pool.queue[-4:] == arrived.chains[2]


def test_what_the_turns_lack_is_known() -> None:
    arrived = Arrived()
    assert arrived.turns.wanted_blocks() == (6, 3), "40 new tokens each"
    arrived.pool.pool.evict_blocks(set(arrived.chains[1][:2]))
    arrived.renew(near_blocks=100)
    assert arrived.turns.wanted_blocks() == (8, 5)


def test_with_the_setting_off_blocks_stay_but_are_not_given_up() -> None:
    arrived = Arrived(is_protecting=False)
    arrived.pool.order.give_up(arrived.pool.refs(1))
    before = arrived.pool.queue
    arrived.turns.rescue(arrived.pool.refs(1))
    arrived.renew(near_blocks=100)
    assert arrived.pool.queue == before
    num_empty = 20 - 12
    assert arrived.pool.order.count_front(20) == (num_empty, num_empty)
    assert not arrived.recorder.counters and not arrived.dram._arrived


def test_protection_in_dram_lasts_as_long_as_the_wait_and_survives_a_reset() -> None:
    arrived = Arrived()
    keys = LAYOUT.keys(arrived.pool.refs(2))
    assert not arrived.dram._arrived, "not before it matters"
    arrived.turns.protect_in_dram()
    arrived.turns.protect_in_dram()
    assert all(arrived.dram._arrived[key] == 1 for key in keys)
    arrived.dram.clear()
    arrived.turns.restore()
    arrived.turns.protect_in_dram()
    assert all(key in arrived.dram._arrived for key in keys)
    arrived.turns.remove("r2")
    assert not any(key in arrived.dram._arrived for key in keys)
    assert (metrics.PROTECTED_BLOCKS, ()) in arrived.recorder.counters


@pytest.mark.parametrize("step_tokens", [32, 2048])
def test_however_short_the_steps_no_arrived_turn_loses_its_blocks(
    make_rig: RigFactory, step_tokens: int
) -> None:
    rig = make_rig(pool_blocks=64, max_num_seqs=1, max_step_tokens=step_tokens)
    returning = [Agent(rig, f"back{i}", i + 1, 6) for i in range(4)]
    away = [Agent(rig, f"away{i}", i + 20, 6) for i in range(4)]
    for agent in [*returning, *away]:
        agent.turn()
    ids = [agent.arrive(tool_tokens=blocks(7), max_tokens=30) for agent in returning]
    rig.settle()
    assert [rig.results[request_id].gpu_hit_tokens for request_id in ids] == [blocks(6)] * 4


WINDOW = Group(group_id=1, per_block=1, per_chunk=1, window=3)
COARSE = Group(group_id=2, per_block=4, per_chunk=8)


@pytest.mark.parametrize(
    ("groups", "num_tokens", "num_blocks"),
    [
        ((FULL,), 1, 1),
        ((FULL,), 16, 1),
        ((FULL,), 17, 2),
        ((FULL, WINDOW), 17, 4),
        ((FULL, WINDOW), 1600, 100 + 3),
        ((FULL, COARSE), 100, 7 + 2),
    ],
)
def test_blocks_are_counted_over_all_groups(
    groups: tuple[Group, ...], num_tokens: int, num_blocks: int
) -> None:
    assert Layout(groups, 16).blocks(num_tokens) == num_blocks


def test_windows_free_blocks_as_a_turn_goes_on() -> None:
    assert Layout((FULL,), 16).windowed_blocks(100) == 0
    assert Layout((FULL, WINDOW), 16).windowed_blocks(100) == 7


def test_the_pools_capacity_is_shared_by_full_attention_groups_only() -> None:
    other = FULL._replace(group_id=3)
    assert Layout((FULL,), 16).pool_hash_blocks(60) == 60
    assert Layout((FULL, WINDOW), 16).pool_hash_blocks(60) == 60
    assert Layout((FULL, other), 16).pool_hash_blocks(60) == 30
    assert Layout((COARSE,), 16).pool_hash_blocks(60) == 240


def test_a_dram_key_stands_for_a_whole_chunk() -> None:
    refs = [(depth, bytes([depth]) * 32) for depth in range(1, 18)]
    keys = Layout((COARSE,), 16).keys(refs)
    assert [key[:1] for key in keys] == [bytes([8]), bytes([16])]
