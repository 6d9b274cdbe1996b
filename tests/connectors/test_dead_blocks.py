"""Dead blocks go first, also those that were in use when they died, and none that lives again."""

from kit.pool import FULL, Pool
from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus

from agentkv.connectors.cache_policy import AgentKVCachePolicy
from agentkv.connectors.dead_blocks import DeadBlocks
from agentkv.connectors.layout import Layout
from agentkv.prefix_tree import PrefixTree

LAYOUT = Layout((FULL,), tokens_per_hash=16)


class Dead:
    """Two chains of four blocks in the pool and in DRAM; the first one is about to die."""

    def __init__(self) -> None:
        self.pool = Pool(8)  # Full: none is empty.
        self.chains = {seed: self.pool.cache(seed, 4)[::-1] for seed in (2, 1)}
        self.dram = AgentKVCachePolicy(cache_capacity=20)
        self.keys = {seed: LAYOUT.keys(self.pool.refs(seed)) for seed in (1, 2)}
        for number, key in enumerate([*self.keys[2], *self.keys[1]]):
            chunk = ChunkStatus(number)
            chunk.ref_cnt = 0
            self.dram.insert(key, chunk)
        self.tree = PrefixTree()
        self.blocks = DeadBlocks(self.dram, LAYOUT)

    def discard(self, seed: int | None = None) -> tuple[int, int]:
        """(Blocks moved in the pool, blocks that are dead)."""
        died = self.pool.refs(seed) if seed is not None else []
        num_moved, dead = self.blocks.discard(self.pool.order, died, self.tree)
        return num_moved, len(dead)


def test_they_go_first_in_the_pool_and_in_dram() -> None:
    dead = Dead()
    assert dead.discard(1) == (4, 4)
    assert dead.pool.queue[:4] == dead.chains[1]
    victims = dead.dram.evict(4, set())
    assert victims is not None and {key for key, _ in victims} == set(dead.keys[1])


def test_one_in_use_goes_first_once_it_is_free() -> None:
    dead = Dead()
    used = dead.pool.pool.get_cached_block(dead.pool.chains[1][0], [0])
    assert used is not None
    dead.pool.pool.touch(used)
    assert dead.discard(1) == (3, 4) and len(dead.blocks) == 1
    dead.pool.pool.free_blocks(used)
    assert dead.pool.queue[-1] == used[0].block_id
    assert dead.discard() == (0, 0), "nobody said that anything was freed"
    dead.blocks.note_freed()
    assert dead.discard() == (1, 1) and len(dead.blocks) == 0
    assert dead.pool.queue[0] == used[0].block_id


def test_one_that_comes_back_two_steps_late_is_still_found() -> None:
    dead = Dead()
    used = dead.pool.pool.get_cached_block(dead.pool.chains[1][0], [0])
    assert used is not None
    dead.pool.pool.touch(used)
    dead.blocks.note_freed()
    assert dead.discard(1) == (3, 4)
    assert dead.discard() == (0, 1)
    dead.pool.pool.free_blocks(used)
    assert dead.discard() == (1, 1)


def test_one_that_a_session_has_taken_up_again_stays() -> None:
    dead = Dead()
    dead.tree.add(dead.pool.chains[1][:3], "another session")
    assert dead.discard(1) == (1, 1)
    assert dead.pool.queue[0] == dead.chains[1][0]
    assert [dead.dram.is_worthless(key) for key in dead.keys[1]] == [True, False, False, False]


def test_dram_is_reminded_after_vllm_has_refreshed_what_a_request_used() -> None:
    dead = Dead()
    dead.discard(1)
    dead.dram.touch(dead.keys[1], ReqContext(req_id="r"))
    assert not dead.dram.is_worthless(dead.keys[1][0])
    dead.blocks.remind_dram()
    assert all(dead.dram.is_worthless(key) for key in dead.keys[1])
    dead.dram.touch(dead.keys[1], ReqContext(req_id="r"))
    dead.blocks.remind_dram()
    assert not dead.dram.is_worthless(dead.keys[1][0]), "once only"


def test_one_that_a_waiting_turn_wants_keeps_its_rank_in_dram() -> None:
    dead = Dead()
    dead.dram.protect(dead.keys[1][2:])
    assert dead.discard(1) == (4, 4)
    assert not dead.dram.is_worthless(dead.keys[1][2])


def test_a_reset_forgets_them() -> None:
    dead = Dead()
    used = dead.pool.pool.get_cached_block(dead.pool.chains[1][0], [0])
    assert used is not None
    dead.pool.pool.touch(used)
    dead.discard(1)
    dead.blocks.clear()
    assert len(dead.blocks) == 0
    dead.dram.touch(dead.keys[1], ReqContext(req_id="r"))
    dead.blocks.remind_dram()
    assert not any(dead.dram.is_worthless(key) for key in dead.keys[1])
