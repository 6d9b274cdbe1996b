"""DRAM that changes under us: loads are refused, tokens are not affected, and we could tell."""

from collections.abc import Callable, Sequence

import pytest

from agentkv.connectors import host_copies

from .checks import assert_exact
from .conftest import StartEngine
from .engine import BLOCK_TOKENS, Answer, Ask, Engine, prompt_of

NUM_BLOCKS = 7
SESSION = Ask("turn", prompt_of(1, NUM_BLOCKS * BLOCK_TOKENS + 9), 12, session="s")

DAMAGED: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "all": lambda chunks: chunks,
    "first": lambda chunks: chunks[:1],
    "one inside": lambda chunks: chunks[3:4],
    "last": lambda chunks: chunks[-1:],
}


def swapped_out(start: StartEngine) -> Engine:
    """An engine whose only session lies in DRAM and nowhere else."""
    engine = start({"policy": "always_swap"}, num_blocks=60)
    engine.ask(SESSION)
    engine.forget_pool()
    return engine


def stored_chunks(engine: Engine) -> list[int]:
    """Chunks of the DRAM tier in the order in which they were stored."""
    return [chunk.chunk_id for chunk in engine.dram.chunks.values()]


def flip_a_byte(engine: Engine, chunks: Sequence[int]) -> None:
    """In each chunk of each cache tensor: the sign and exponent of one number."""
    for rows in engine.copier.copies._dram:
        rows[list(chunks), 3] ^= 0xFF


def load_failures(engine: Engine) -> float:
    return engine.count("agentkv:load_failures", reason="checksum")


@pytest.mark.parametrize("which", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_block_is_refused_and_computed_again(
    base: Engine, start: StartEngine, which: Callable[[Sequence[int]], Sequence[int]]
) -> None:
    engine = swapped_out(start)
    damaged = which(stored_chunks(engine))
    flip_a_byte(engine, damaged)
    assert_exact({"turn": base.ask(SESSION)}, {"turn": engine.ask(SESSION)})
    assert load_failures(engine) == len(damaged)


def test_the_next_turn_stores_a_good_copy(base: Engine, start: StartEngine) -> None:
    engine = swapped_out(start)
    flip_a_byte(engine, stored_chunks(engine))
    engine.ask(SESSION)
    assert len(engine.dram.chunks) == 0, "a damaged block is still offered"
    engine.ask(SESSION)
    engine.forget_pool()
    answer = engine.ask(SESSION)
    assert_exact({"turn": base.ask(SESSION)}, {"turn": answer})
    assert answer.cached_tokens == NUM_BLOCKS * BLOCK_TOKENS
    assert load_failures(engine) == NUM_BLOCKS


@pytest.mark.parametrize("which", DAMAGED.values(), ids=DAMAGED)
def test_requests_that_share_a_refused_load(
    base: Engine, start: StartEngine, which: Callable[[Sequence[int]], Sequence[int]]
) -> None:
    """Four at once; none may go on with blocks that another is still computing again."""
    sharers = [
        Ask(f"r{i}", SESSION.prompt + prompt_of(50 + i, 20 * i), 12, session=f"s{i}")
        for i in range(4)
    ]
    engine = swapped_out(start)
    flip_a_byte(engine, which(stored_chunks(engine)))
    assert_exact(base.run(sharers), engine.run(sharers))
    assert load_failures(engine) > 0


def test_without_the_checksum_a_flipped_byte_shows_in_the_output(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the tests of this folder would see a wrong block."""

    def resumed(engine: Engine) -> Answer:
        flip_a_byte(engine, stored_chunks(engine))
        return engine.ask(SESSION)

    monkeypatch.setattr(host_copies, "checksum", lambda page: 1)
    engine = swapped_out(start)
    with pytest.raises(AssertionError, match=r"other tokens|log-probability is off"):
        assert_exact({"turn": base.ask(SESSION)}, {"turn": resumed(engine)})
    assert load_failures(engine) == 0
