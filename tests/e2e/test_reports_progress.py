"""Public bug reports about requests that get stuck, and about work done for nothing.

The numbers refer to tests/BUG_REPORTS.md.
"""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentkv.connectors.host_copies import HostCopies, PageCopies

from .checks import assert_exact, talk
from .conftest import StartEngine
from .engine import BLOCK_TOKENS as B
from .engine import Answer, Ask, Engine, chain, prompt_of


def test_a38_many_small_requests_in_a_small_pool_all_finish(
    base: Engine, start: StartEngine
) -> None:
    """`Engine.run` is the watchdog: it fails when no request gets a token for a while."""
    rng = random.Random(0)
    asks = [
        Ask(f"r{i}", prompt_of(i % 90, rng.randrange(10, 150)), rng.randrange(2, 8))
        for i in range(300)
    ]
    engine = start(num_blocks=48, max_num_seqs=12)
    want = base.run(asks)
    for _ in range(2):
        assert_exact(want, engine.run(asks, concurrency=12))
    assert engine.loaded_blocks > 0


@dataclass
class Gate:
    """Holds back every load from DRAM until it is opened; counts the pages loaded."""

    is_open: threading.Event = field(default_factory=threading.Event)
    num_pages: int = 0

    def install(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        load = engine.copier.copies.load

        def gated(copies: PageCopies) -> PageCopies:
            self.is_open.wait()
            self.num_pages += len(copies)
            return load(copies)

        monkeypatch.setattr(engine.copier.copies, "load", gated)


def test_a44_requests_that_share_a_load_start_together_after_it(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = prompt_of(1, 6 * B)
    asks = [Ask(f"r{i}", chain(trunk, prompt_of(10 + i, 5))) for i in range(8)]
    engine = start(num_blocks=60)
    engine.ask(Ask("first", trunk))
    engine.forget_pool()
    gate = Gate()
    gate.install(engine, monkeypatch)
    for ask in asks:
        engine.add(ask)
    for _ in range(10):
        assert not engine.step(), "an answer before the load"
    gate.is_open.set()
    while any(job.kind == 0 for job in list(engine.copier._jobs.values())):
        time.sleep(0.001)
    started: set[str] = set()
    num_steps = 0
    while len(started) < len(asks):
        started |= {output.request_id for output in engine.step()}
        num_steps += 1
    assert gate.num_pages == 6, "the shared blocks were loaded more than once"
    # One step learns of the load, one computes the owner, one the others.
    assert num_steps <= 3
    engine.run([])


def test_a45_a_copy_path_that_always_fails_costs_hits_only(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU there is one way to copy; broken from the start on, it must not stop anything."""

    def broken(self: HostCopies, copies: PageCopies) -> PageCopies:
        raise OSError("no memory to copy with")

    monkeypatch.setattr(HostCopies, "store", broken)
    monkeypatch.setattr(HostCopies, "load", broken)
    engine = start()
    asks = [Ask(f"r{i}", prompt_of(i, 200), session=f"s{i}") for i in range(6)]
    want = base.run(asks)
    for _ in range(3):
        assert_exact(want, engine.run(asks, concurrency=3))
        engine.forget_pool()
    assert engine.count("agentkv:load_failures") > 0


def test_a80_what_fits_in_the_pool_is_stored_once_and_never_loaded(engine: Engine) -> None:
    asks = [Ask(f"r{i}", prompt_of(i, 4 * B + 3), 3, session=f"s{i}") for i in range(6)]
    engine.run(asks)
    stored_once = engine.stored_blocks
    assert stored_once == 6 * 4
    for _ in range(4):
        engine.run(asks)
    assert engine.loaded_blocks == 0
    assert engine.stored_blocks == stored_once


def test_a101_the_cache_still_hits_after_a_long_rough_run(base: Engine, start: StartEngine) -> None:
    """300 turns of 6 sessions, with aborts and preemptions; a second probe always hits."""
    engine = start({"dram": {"size_bytes": "2MiB"}}, num_blocks=33, max_num_batched_tokens=128)
    rng = random.Random(0)
    soak = Soak(engine, rng)
    for round_ in range(50):
        soak.one_turn_of_each(round_)
        if round_ % 5 == 0:
            probe = Ask(f"probe{round_}", prompt_of(10_000 + round_, 5 * B + 7), session="probe")
            first, second = engine.ask(probe), engine.ask(probe)
            assert second.cached_tokens == 5 * B
            want = {"probe": base.ask(probe)}
            assert_exact(want, {"probe": first})
            assert_exact(want, {"probe": second})
    assert soak.num_turns == 300
    assert soak.num_aborted > 10
    assert engine.count("vllm:num_preemptions") > 10
    assert engine.loaded_blocks > 100


@dataclass
class Soak:
    """Sessions that grow, start over when long, and are cut off now and then."""

    engine: Engine
    rng: random.Random
    prompts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_turns: int = 0
    num_aborted: int = 0

    def one_turn_of_each(self, round_: int) -> None:
        for s in range(6):
            self.prompts.setdefault(s, prompt_of(100 * round_ + s, 90))
        asks = [
            Ask(f"s{s}", self.prompts[s], self.rng.randrange(4, 40), session=f"s{s}")
            for s in range(6)
        ]
        victims = [f"s{s}" for s in range(6) if self.rng.random() < 0.1]
        answers = self.engine.run(asks, concurrency=6, on_step=self._cut_off(victims))
        self.num_turns += len(asks)
        self.num_aborted += len(asks) - len(answers)
        for s in range(6):
            self._grow(s, answers.get(f"s{s}"), round_)

    def _cut_off(self, victims: list[str]) -> Any:
        def on_step(engine: Engine) -> None:
            if victims and self.rng.random() < 0.2:
                engine.abort(victims.pop())

        return on_step

    def _grow(self, s: int, answer: Answer | None, round_: int) -> None:
        if answer is None:
            return  # The client tries the same turn again.
        self.prompts[s] = chain(
            self.prompts[s], answer.tokens, prompt_of(7000 + round_ * 6 + s, 30)
        )
        if len(self.prompts[s]) > 400:
            del self.prompts[s]


def test_a112_the_dram_tier_is_ready_before_the_first_request(engine: Engine) -> None:
    """vLLM fills the tier's pages during start: there is no time in which stores are skipped."""
    answers = talk(engine, num_sessions=3, num_turns=1)
    assert len(answers) == 3
    assert engine.stored_blocks == 3 * 6
    assert engine.count("vllm:kv_offload_stores_skipped") == 0
