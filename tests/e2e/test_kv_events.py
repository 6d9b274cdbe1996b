"""A router beside a real engine knows what lies where: over ZMQ, by vLLM's own decoder."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import zmq
from kit.kv_events import DRAM, SSD, EventIndex, held
from kit.ports import free_port
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

from .checks import talk
from .conftest import StartEngine
from .engine import Ask, Engine, prompt_of

_UNPACK = msgspec.msgpack.Decoder(KVEventBatch)
_WAIT_MS = 60_000


def test_a_router_knows_what_pool_dram_and_disk_hold(start: StartEngine, tmp_path: Path) -> None:
    live, replay = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    ssd = {"path": str(tmp_path / "kv"), "size_bytes": "1MiB", "min_free_bytes": "1MiB"}
    engine = start(
        {"park_after_s": 0, "policy": "always_swap", "dram": {"size_bytes": "1MiB"}, "ssd": ssd},
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=live.replace("127.0.0.1", "*"),
            replay_endpoint=replay,
        ),
    )
    with zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.connect(live)
        listener.subscribe("")
        time.sleep(2.0)  # ZMQ tells nobody when a subscription has arrived.
        talk(engine, num_sessions=4, concurrency=2, num_turns=2)
        for seed in range(16):  # More than pool, DRAM and disk hold.
            engine.ask(Ask(f"other{seed}", prompt_of(7000 + seed, 900), 2, session=f"o{seed}"))
            engine.wait_for_tiers()
        engine.forget_pool()
        for _ in range(3):
            engine.signal("heartbeat", "s0")
            engine.wait_for_tiers()
        engine.signal("heartbeat", "s0")
        batches = _numbered(engine)
        heard = _listen(listener, batches)
        asked = _ask_again(context, replay, batches)
    truth = held(engine.connector, engine.pool)
    for index in (heard, asked):
        for place, hashes in truth.items():
            assert index.at(place) == hashes, place
    assert truth[DRAM] and truth[SSD]
    for place in (DRAM, SSD):
        ever = {block_hash for medium, block_hash in heard.stored if medium == place[0]}
        assert len(ever) > len(truth[place]), "nothing was evicted"
    sessions = {event.session_id for event in heard.stored.values()}
    assert {"s0", "s3", "o5"} <= sessions


def _numbered(engine: Engine) -> int:
    """How many batches the engine has published."""
    publisher = engine.scheduler.kv_event_publisher
    assert isinstance(publisher, ZmqEventPublisher)
    deadline_s = time.monotonic() + _WAIT_MS / 1000
    while publisher._event_queue.unfinished_tasks and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return publisher._buffer[-1][0] + 1


def _listen(listener: zmq.Socket[bytes], num_batches: int) -> EventIndex:
    """A subscriber from the start: every batch, in order."""
    index = EventIndex()
    for number in range(num_batches):
        assert listener.poll(_WAIT_MS), f"batch {number} of {num_batches} did not come"
        _, seq, payload = listener.recv_multipart()
        assert int.from_bytes(seq, "big") == number
        index.apply(_UNPACK.decode(payload).events)
    return index


def _ask_again(context: zmq.Context[zmq.Socket[bytes]], address: str, num: int) -> EventIndex:
    """A router that was started anew asks for what it missed."""
    index = EventIndex()
    with context.socket(zmq.DEALER) as asking:
        asking.connect(address)
        asking.send_multipart([b"", (0).to_bytes(8, "big")])
        for _ in range(num):
            assert asking.poll(_WAIT_MS)
            index.apply(_UNPACK.decode(asking.recv_multipart()[-1]).events)
    return index
