"""KV that was brought back before its turn gives the tokens of a stock vLLM, on a real model."""

import pytest

from agentkv.connectors import host_copies

from .checks import assert_exact
from .conftest import StartEngine
from .engine import BLOCK_TOKENS, Answer, Ask, Engine, chain, prompt_of
from .test_corruption import flip_a_byte, stored_chunks

NUM_BLOCKS = 9
FIRST = Ask("first", prompt_of(1, NUM_BLOCKS * BLOCK_TOKENS + 9), 12, session="s")


def next_turn(base: Engine, **fields: object) -> tuple[Ask, Answer]:
    """The turn after FIRST, and what a stock vLLM answers to it."""
    answered = base.ask(FIRST).tokens
    ask = Ask("next", chain(FIRST.prompt, answered, prompt_of(2, 20)), 12, session="s", **fields)
    return ask, base.ask(ask)


def swapped_out(start: StartEngine) -> Engine:
    engine = start({"policy": "always_swap"}, num_blocks=60)
    engine.ask(FIRST)
    engine.forget_pool()
    return engine


@pytest.mark.parametrize("copies", ["threads", "inline"], indirect=True)
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "seed": 3}, {"n": 3, "seed": 4, "temperature": 0.9}]
)
def test_a_prefetched_turn_is_exact_and_loads_nothing(
    base: Engine, start: StartEngine, sampling: dict[str, object]
) -> None:
    engine = swapped_out(start)
    ask, want = next_turn(base, sampling=sampling)
    engine.signal("resume", "s")
    loaded = engine.loaded_blocks
    assert loaded >= NUM_BLOCKS
    got = engine.ask(ask)
    assert_exact({"next": want}, {"next": got}, is_sampled=bool(sampling))
    assert engine.loaded_blocks == loaded, "found in the pool"
    assert got.cached_tokens >= NUM_BLOCKS * BLOCK_TOKENS


def test_a_turn_that_arrives_during_the_load_is_exact(base: Engine, start: StartEngine) -> None:
    engine = swapped_out(start)
    ask, want = next_turn(base)
    original = engine.settle
    engine.settle = lambda: None  # type: ignore[method-assign]
    engine.signal("resume", "s")
    engine.settle = original  # type: ignore[method-assign]
    assert_exact({"next": want}, {"next": engine.ask(ask)})


def test_prefetches_among_running_turns_change_no_answer(base: Engine, start: StartEngine) -> None:
    engine = start({"policy": "always_swap"}, num_blocks=60)
    sessions = [
        Ask(f"s{i}", prompt_of(10 + i, 7 * BLOCK_TOKENS + i), 6, session=f"s{i}") for i in range(12)
    ]
    engine.run(sessions)
    turns = [
        Ask(
            f"t{i}",
            chain(ask.prompt, base.ask(ask).tokens, prompt_of(50 + i, 30)),
            8,
            session=ask.session,
        )
        for i, ask in enumerate(sessions)
    ]
    numbers = iter(range(10_000))

    def tell(engine: Engine) -> None:
        """A tool is done somewhere, step by step."""
        settle, engine.settle = engine.settle, lambda: None  # type: ignore[method-assign]
        engine.signal("resume", f"s{next(numbers) % 12}")
        engine.settle = settle  # type: ignore[method-assign]

    want = base.run(turns)
    assert_exact(want, engine.run(turns, concurrency=3, on_step=tell))
    assert engine.count("agentkv:prefetches") > 0


def test_a_damaged_block_is_not_brought_back(base: Engine, start: StartEngine) -> None:
    engine = swapped_out(start)
    ask, want = next_turn(base)
    flip_a_byte(engine, stored_chunks(engine)[2:3])
    engine.signal("resume", "s")
    assert engine.count("agentkv:prefetch_outcomes", outcome="failed") == 1
    assert_exact({"next": want}, {"next": engine.ask(ask)})


def test_a_damaged_block_that_is_believed_changes_the_answer(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: these tests would notice one wrong number."""
    engine = swapped_out(start)
    ask, want = next_turn(base)
    flip_a_byte(engine, stored_chunks(engine))
    monkeypatch.setattr(host_copies, "checksum", lambda row: 1)
    engine.copier.copies._sums[:] = 1
    engine.signal("resume", "s")
    with pytest.raises(AssertionError):
        assert_exact({"next": want}, {"next": engine.ask(ask)})
