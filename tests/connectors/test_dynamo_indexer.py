"""The recipe of examples/router: Dynamo's indexer reads our events and finds sessions by tier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit import Rig, blocks, prompt
from kit.control import tell
from kit.dynamo_indexer import Indexer, Overlap, indexing
from kit.ports import free_port
from kit.tiers import crowd, look_on, parked, ssd
from vllm.distributed.kv_events import ZmqEventPublisher

RigFactory = Callable[..., Rig]


@pytest.fixture
def rig(make_rig: RigFactory, tmp_path: Path) -> Rig:
    return make_rig(**ssd(tmp_path / "kv"), publishes_events=True)


@pytest.fixture
def indexer(rig: Rig, tmp_path: Path) -> Iterator[Indexer]:
    port, http_port = free_port(), free_port()
    publisher = ZmqEventPublisher(0, endpoint=f"tcp://*:{port}")
    rig.scheduler.kv_event_publisher = publisher
    try:
        events = f"tcp://127.0.0.1:{port}"
        with indexing(tmp_path, http_port, events, block_tokens=16) as indexer:
            _until_it_listens(rig, indexer)
            yield indexer
    finally:
        publisher.shutdown()


def _until_it_listens(rig: Rig, indexer: Indexer) -> None:
    """ZMQ tells nobody when a subscription has arrived."""
    told: list[list[int]] = []
    for number in range(1000):
        told.append(prompt(9000 + number, blocks(1)))
        rig.run(f"canary{number}", told[-1], max_tokens=1)
        time.sleep(0.05)
        if any(indexer.query(tokens) != Overlap() for tokens in told[-10:]):
            return
    raise AssertionError("the indexer hears nothing")


def test_dynamo_finds_a_session_in_each_tier_and_nowhere_else(rig: Rig, indexer: Indexer) -> None:
    agent = parked(rig)
    context = agent.context
    indexer.wait_for(context, Overlap(160, 160, 160))
    rig.drop_gpu_cache()
    for _ in range(2):
        tell(rig)
        rig.settle()
    indexer.wait_for(context, Overlap(0, 160, 160))
    crowd(rig)
    look_on(rig)
    assert rig.cached_blocks(context) == rig.dram_blocks(context) == 0
    indexer.wait_for(context, Overlap(0, 0, 160))
    agent.turn()
    look_on(rig)
    indexer.wait_for(context, Overlap(160, 160, 160))
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    tell(rig)
    rig.settle()
    indexer.wait_for(context, Overlap())
