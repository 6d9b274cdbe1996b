"""Public bug reports about numbers that say something else than they mean.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kit import Agent, Rig, engine_config

from agentkv import metrics
from agentkv.connectors import assembly
from agentkv.errors import ConfigError

RigFactory = Callable[..., Rig]


def pool_gauges(rig: Rig) -> dict[str, float]:
    rig.side.room.record(rig.side._order)
    gauges = rig.connector._recorder.gauges.items()
    return {labels[0]: value for (metric, labels), value in gauges if metric is metrics.BLOCKS}


def test_a110_running_kept_and_free_blocks_are_told_apart(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=100)
    Agent(rig, "ended", 1, 50).turn(tag={"last_turn": True})
    held = Agent(rig, "held", 2, 19)
    held.turn()
    running = Agent(rig, "running", 3, 29.5)
    request_id = running.arrive(max_tokens=4)
    rig.step_until(lambda: bool(rig.results[request_id].tokens))
    assert pool_gauges(rig) == {"used": 30, "kept": 20, "free": 50}
    rig.settle()
    assert pool_gauges(rig) == {"used": 0, "kept": 50, "free": 50}


def test_a110_what_sessions_share_is_not_more_than_there_is(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=60)
    first = Agent(rig, "a", 1, 30)
    for agent in (first, Agent(rig, "b", 2, 2, shared=first.context)):
        agent.turn()
    assert pool_gauges(rig) == {"used": 0, "kept": 60, "free": 0}


def test_a111_a_dram_tier_too_small_for_one_block_is_refused(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_config, "CHUNK_BYTES", engine_config.CHUNK_BYTES - 1)
    with pytest.raises(ConfigError) as refused:
        make_rig(dram_blocks=1)
    assert str(refused.value).startswith("dram.size_bytes: 4095 bytes hold 0 KV blocks of 4096")


def test_a111_the_start_says_how_many_blocks_and_bytes_there_are(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(assembly.logger, "info", lambda text, *rest: said.append(text % rest))
    make_rig(pool_blocks=100, dram_blocks=7)
    wanted = "GPU pool: 100 blocks of 16 tokens; DRAM tier: 7 blocks, 28672 bytes (0.00 GiB)"
    assert [line for line in said if line.endswith(wanted)]
