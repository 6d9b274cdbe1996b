"""The recipe of examples/router: vllm-router sends a session to where its KV is, in any tier."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit import Rig, blocks, prompt
from kit.control import tell
from kit.ports import free_port
from kit.tiers import crowd, look_on, parked, ssd
from kit.vllm_router import Router, routing
from vllm.distributed.kv_events import ZmqEventPublisher

RigFactory = Callable[..., Rig]


@pytest.fixture
def rig(make_rig: RigFactory, tmp_path: Path) -> Rig:
    """What one of the servers has."""
    return make_rig(**ssd(tmp_path / "kv"), publishes_events=True)


@pytest.fixture
def router(rig: Rig, tmp_path: Path) -> Iterator[Router]:
    """Knows who has what the rig has, `holder`, and who gets what nobody knows, the `other`.

    vllm-router decides for itself which one that is: the one that was ready first, it seems.
    """
    ports = {name: free_port() for name in "ab"}
    publishers = {n: ZmqEventPublisher(0, endpoint=f"tcp://*:{port}") for n, port in ports.items()}
    try:
        events = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        with routing(tmp_path, events, block_tokens=16) as router:
            router.other = router.place(prompt(8000, blocks(2)))
            router.holder = "b" if router.other == "a" else "a"
            rig.scheduler.kv_event_publisher = publishers[router.holder]
            _until_it_listens(rig, router)
            yield router
    finally:
        for publisher in publishers.values():
            publisher.shutdown()


def _until_it_listens(rig: Rig, router: Router) -> None:
    """ZMQ tells nobody when a subscription has arrived."""
    for number in range(200):
        tokens = prompt(9000 + number, blocks(2))
        rig.run(f"canary{number}", tokens, max_tokens=1)
        time.sleep(0.05)
        if router.place(tokens) == router.holder:
            return
    raise AssertionError("the router hears nothing")


def test_a_session_is_sent_to_its_kv_in_pool_dram_or_on_disk(rig: Rig, router: Router) -> None:
    agent = parked(rig)
    context = agent.context
    assert router.place(prompt(4711, blocks(10))) == router.other, "nobody knows this one"
    router.wait_for(context, router.holder)
    rig.drop_gpu_cache()
    for _ in range(2):
        tell(rig)
        rig.settle()
    assert (rig.cached_blocks(context), rig.dram_blocks(context)) == (0, 10)
    time.sleep(0.3)  # Until all of it was heard: the holder is right before, too.
    assert router.place(context) == router.holder, "DRAM"
    crowd(rig)
    look_on(rig)
    assert rig.cached_blocks(context) == rig.dram_blocks(context) == 0
    time.sleep(0.3)
    assert router.place(context) == router.holder, "the disk"
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    tell(rig)
    rig.settle()
    router.wait_for(context, router.other)
