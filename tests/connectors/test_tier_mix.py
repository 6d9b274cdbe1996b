"""Sessions over a disk and a Redis that are mistreated: every element that comes back is right.

Seeded and endless: AGENTKV_MIX_BLOCKS says how many blocks have to come up from the tiers (the
default is CI's share; `bash ci/faults.sh` asks for more). This is the whole chain, scheduler and
all; the stores alone give a million blocks in tests/tiers/test_fault_mix.py.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Agent, Rig, prompt
from kit.control import tell
from kit.redis_server import RedisServer, running
from kit.tiers import HUMAN

from agentkv.signals import Event
from agentkv.tiers.base import Entry

RigFactory = Callable[..., Rig]
NUM_BLOCKS = int(os.environ.get("AGENTKV_MIX_BLOCKS", "1500"))
ROUND_BLOCKS = 1500  # A new rig then: what a rig keeps for its checks grows.
MAX_RUNS = 10_000  # for one rig; about a thousand are needed
NUM_AGENTS = 12
TOOL = {"tool": "bash", "expected_wait_s": 5.0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path, maxmemory="64mb", maxmemory_policy="allkeys-lru") as server:
        yield server


class Mix:
    """One rig, its sessions, and what is done to them and to the tiers."""

    def __init__(self, rig: Rig, server: RedisServer, folder: Path, seed: int) -> None:
        self.rig = rig
        self.server = server
        self.folder = folder
        self.random = random.Random(seed)
        rig.has_stuck_tier = True  # Steps that meet copies under way are what is looked for.
        shared = prompt(seed, 3 * 16)
        self.agents = [
            Agent(rig, f"a{i}", 100 * seed + i, 6 + i % 7, shared=shared if i % 2 else ())
            for i in range(NUM_AGENTS)
        ]
        self.faults: dict[str, Callable[[], None]] = {
            "damage disk": self.damage_disk,
            "damage redis": self.damage_redis,
            "damage dram": self.damage_dram,
            "kill": self.restart_redis,
            "flush": lambda: self.server.client().flushall(),
            "reset": lambda: self.reset(with_connector=False),
            "fence": lambda: self.reset(with_connector=True),
            "late copies": self.delay_copies,
            "failing disk": self.fail_some_stores,
        }

    @property
    def num_promoted(self) -> float:
        return self.rig.counter("agentkv:promoted_blocks")

    def run(self) -> None:
        for agent in self.random.sample(self.agents, self.random.randint(1, 4)):
            if len(agent.context) > 22 * 16:
                self.end(agent)
                agent.context = agent.context[: 8 * 16]
            agent.arrive(
                tool_tokens=self.random.randint(1, 40), tag=self.random.choice((HUMAN, TOOL))
            )
        self.rig.settle()
        for _ in range(self.random.randint(1, 12)):
            tell(self.rig)
            self.rig.step()
            time.sleep(0.0005)
        if self.random.random() < 0.2:
            self.signal("resume", self.random.choice(self.agents))
        if self.random.random() < 0.12:
            self.faults[self.random.choice(list(self.faults))]()

    def end(self, agent: Agent) -> None:
        self.signal("end", agent)

    def signal(self, event: str, agent: Agent) -> None:
        named = Event.model_validate({"event": event, "session_id": agent.name})
        tell(self.rig, named)
        self.rig.settle()

    # --- mistreatment ---

    def damage_disk(self) -> None:
        for file in self.folder.rglob("*"):
            if file.is_file() and file.stat().st_size > 1 << 20:
                with file.open("r+b") as segment:
                    for _ in range(20):
                        segment.seek(self.random.randrange(file.stat().st_size))
                        segment.write(self.random.randbytes(1))

    def damage_redis(self) -> None:
        client = self.server.client()
        for key in list(client.scan_iter("agentkv:1:*{*"))[:5]:
            client.setrange(key, self.random.randrange(4000), self.random.randbytes(1))

    def damage_dram(self) -> None:
        chunks = [chunk for chunk in self.rig.dram.chunks.values() if chunk.ref_cnt == 0]
        if chunks:
            row = self.rig.copies.copies._dram[0][self.random.choice(chunks).chunk_id]
            row[self.random.randrange(len(row))] ^= 64

    def restart_redis(self) -> None:
        self.server.kill()
        self.server.start()

    def reset(self, *, with_connector: bool) -> None:
        self.rig.scheduler.reset_prefix_cache(reset_connector=with_connector)

    def delay_copies(self) -> None:
        self.rig.script.store_delay_steps = self.random.randint(0, 4)
        self.rig.script.load_delay_steps = self.random.randint(0, 4)

    def fail_some_stores(self) -> None:
        """Once: the disk takes one batch not at all."""
        store: Any = self.rig.connector.connector_scheduler.manager.tiers[0].store

        def refuse(entries: list[Entry]) -> list[bool]:
            del store.store
            return [False] * len(entries)

        store.store = refuse


def test_nothing_wrong_ever_comes_back(
    make_rig: RigFactory, server: RedisServer, tmp_path: Path
) -> None:
    num_blocks, seed = 0.0, 0
    by_tier: dict[str, float] = {}
    while num_blocks < NUM_BLOCKS:
        seed += 1
        folder = tmp_path / f"kv{seed}"
        rig = make_rig(
            pool_blocks=60,
            dram_blocks=90,
            is_hybrid=seed % 3 == 0,
            is_async=seed % 2 == 0,
            extra={
                "min_load_tokens": 0,
                "park_after_s": 2.0,
                "returns_elsewhere": 0.5,
                "ssd": {"path": str(folder), "size_bytes": "4MiB", "min_free_bytes": "1MiB"},
                "redis": {"url": server.url, "timeout_s": 0.5},
            },
        )
        mix = Mix(rig, server, folder, seed)
        num_runs = 0
        while mix.num_promoted < min(ROUND_BLOCKS, NUM_BLOCKS - num_blocks):
            mix.run()
            num_runs += 1
            assert num_runs < MAX_RUNS, "too few blocks come up"
        rig.clean()
        for request_id in rig.results:
            rig.check_answer(request_id)
        num_blocks += mix.num_promoted
        for (tier, _), count in rig.counters["agentkv:promoted_blocks"].items():
            by_tier[tier] = by_tier.get(tier, 0) + count
        assert not rig.counter("agentkv:faults")
        rig.is_spoilt = True  # It was checked: the fixture must not step it again.
        rig.connector.shutdown()
    # A worker of pytest-xdist has no other output.
    print(f"\n{num_blocks:,.0f} blocks came up in {seed} rounds: {by_tier}", file=sys.stderr)
    assert by_tier.keys() == {"ssd", "redis"}
