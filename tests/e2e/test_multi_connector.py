"""agentkv as a part of vLLM's MultiConnector: its own duties, whatever else is in the list.

The other part is vLLM's `ExampleConnector`, which keeps prompts in files; once as it is and once
with hybrid groups, for a MultiConnector ends requests in another way if a part does not know those.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

from .checks import assert_clean, assert_exact, assert_talks_alike, traffic
from .engine import BLOCK_TOKENS, SETTINGS, Answer, Ask, Engine, chain, prompt_of
from .server import API_SERVER, Server, serving
from .test_corruption import flip_a_byte, load_failures, stored_chunks

NUM_BLOCKS = 7
SESSION = Ask("turn", prompt_of(1, NUM_BLOCKS * BLOCK_TOKENS + 9), 12, session="s")
SWAP = {"policy": "always_swap", "prefetch": {"enabled": False}}

StartMulti = Callable[..., "MultiEngine"]


class HybridExample(ExampleConnector, SupportsHMA):
    """vLLM's example, if it knew hybrid groups."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None


class BlindExample(HybridExample):
    """Has nothing to give: vLLM's example cannot load for a turn that was preempted."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 0, False


OTHERS = {"HybridExample": HybridExample, "BlindExample": BlindExample}


class MultiEngine(Engine):
    """An engine whose connector is a MultiConnector with agentkv at `place`."""

    place = 0

    @property
    def connector(self) -> Any:
        return self.scheduler.connector.sub_connectors[self.place]

    @property
    def connector_worker(self) -> Any:
        return self._agent.sub_connectors[self.place].connector_worker


def entry(name: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def multi(*entries: dict[str, Any]) -> dict[str, Any]:
    return entry("MultiConnector", {"connectors": list(entries)})


@pytest.fixture(params=["ExampleConnector", "HybridExample"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the other part."""
    name: str = request.param
    if name in OTHERS:
        monkeypatch.setitem(KVConnectorFactory._registry, name, lambda: OTHERS[name])
    return name


@pytest.fixture(params=[0, 1], ids=["first", "second"])
def start_multi(
    request: pytest.FixtureRequest, model: Path, engine_lock: None, tmp_path: Path, other: str
) -> Iterator[StartMulti]:
    """Starts engines with agentkv first or second in the list; nothing may be left in them."""
    engines: list[MultiEngine] = []

    def start(settings: dict[str, Any], *, num_blocks: int = 40) -> MultiEngine:
        entries = [entry(other, {"shared_storage_path": str(tmp_path)})]
        entries.insert(request.param, entry("agentkv", {**SETTINGS, **settings}))
        transfer = KVTransferConfig(**multi(*entries))
        engine = MultiEngine(model, {}, num_blocks=num_blocks, kv_transfer_config=transfer)
        engine.place = request.param
        engines.append(engine)
        return engine

    yield start
    try:
        for engine in engines:
            assert_clean(engine)
    finally:
        for engine in engines:
            engine.close()


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


def swapped_out(engine: Engine) -> Engine:
    """Its only session lies in DRAM; what the other part wrote of it is not asked for."""
    engine.ask(SESSION)
    engine.forget_pool()
    return engine


def next_turn(base: Engine) -> tuple[Ask, Answer]:
    """A prompt that the other part has never seen as a whole, and the right answer."""
    prompt = chain(SESSION.prompt, base.ask(SESSION).tokens, prompt_of(2, 40))
    ask = Ask("next", prompt, 12, session="s")
    return ask, base.ask(ask)


def test_sessions_swap_and_resume_and_the_other_part_stores_too(
    base: Engine, start_multi: StartMulti, tmp_path: Path
) -> None:
    engine = start_multi(SWAP)
    assert_talks_alike(base, engine, num_sessions=5, num_turns=3, concurrency=2, between=traffic)
    found = engine.ledger("resume")
    assert len(found) == 10
    assert all(r["dram_hit_tokens"] > 0 and r["recomputed_tokens"] == 0 for r in found)
    assert engine.loaded_blocks == sum(r["dram_hit_tokens"] for r in found) / BLOCK_TOKENS
    assert files_in(tmp_path) > 0


def test_what_only_the_other_part_has_comes_from_there(
    base: Engine, start_multi: StartMulti, tmp_path: Path
) -> None:
    engine = start_multi(SWAP)
    engine.ask(SESSION)
    assert files_in(tmp_path) == 1
    engine.reset()
    assert len(engine.dram.chunks) == 0
    answer = engine.ask(SESSION)
    assert answer.cached_tokens == NUM_BLOCKS * BLOCK_TOKENS
    assert engine.loaded_blocks == 0
    assert_exact({"turn": base.ask(SESSION)}, {"turn": answer})


def test_a_damaged_block_is_refused_and_computed_again(
    base: Engine, start_multi: StartMulti
) -> None:
    ask, want = next_turn(base)
    engine = swapped_out(start_multi(SWAP, num_blocks=60))
    damaged = stored_chunks(engine)[2:4]
    flip_a_byte(engine, damaged)
    assert_exact({"next": want}, {"next": engine.ask(ask)})
    assert load_failures(engine) == 2


def test_a_prefetched_turn_is_exact_and_loads_nothing(
    base: Engine, start_multi: StartMulti
) -> None:
    ask, want = next_turn(base)
    engine = swapped_out(start_multi({"policy": "always_swap"}, num_blocks=60))
    engine.signal("resume", "s")
    loaded = engine.loaded_blocks
    assert loaded >= NUM_BLOCKS
    assert_exact({"next": want}, {"next": engine.ask(ask)})
    assert engine.loaded_blocks == loaded


@pytest.mark.parametrize("other", ["BlindExample"], indirect=True)
def test_preempted_turns_are_exact(base: Engine, start_multi: StartMulti) -> None:
    asks = [Ask(f"p{i}", prompt_of(40 + i, 150), 40, session=f"p{i}") for i in range(4)]
    engine = start_multi(SWAP)
    numbers = iter(range(10_000))

    def preempt(engine: Engine) -> None:
        if next(numbers) in (9, 23):
            engine.preempt_all()

    assert_exact(base.run(asks), engine.run(asks, on_step=preempt))
    assert engine.loaded_blocks > 0


@pytest.fixture(scope="module")
def server(
    model: Path, engine_lock: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server as users start it, with engine and API in processes of their own."""
    folder = tmp_path_factory.mktemp("multi")
    example = entry("ExampleConnector", {"shared_storage_path": str(folder)})
    settings = {"dram": {"size_bytes": "16MiB"}, "ledger": {"path": f"{folder}/ledger.jsonl"}}
    transfer = json.dumps(multi(entry("agentkv", settings), example))
    flags = ("--model", str(model), "--kv-transfer-config", transfer)
    with serving((*API_SERVER, *flags), folder / "server.log") as server:
        yield server


def test_a_server_counts_and_takes_events(server: Server) -> None:
    body = {"prompt": list(range(4, 104)), "max_tokens": 5, "temperature": 0}
    for _ in range(3):  # vLLM hands the numbers of a step over in the next one.
        assert server.post("/v1/completions", body, **{"X-Session-ID": "s"})["choices"]
    assert server.metric("agentkv:resumes_total", tier="gpu") >= 1
    assert server.metric("agentkv:faults_total") == 0
    assert server.metric("vllm:kv_offload_store_bytes_total") > 0
    event = {"event": "pause", "session_id": "s", "tool": "bash"}
    answer = server.client.post("/v1/agentkv/events", json=event)
    assert answer.is_success, answer.text
    assert server.client.get("/v1/agentkv/sessions/s").is_success
