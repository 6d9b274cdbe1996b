"""What must hold after every run: the answers of a stock vLLM, and nothing left over."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from .engine import Answer, Ask, Engine, chain, prompt_of

TIE = 1e-3
"""A lead in log-probability below which rounding may flip a token: such prompts prove nothing."""

MAX_LOGPROB_ERROR = 1e-4


def assert_exact(
    want: Mapping[str, Answer], got: Mapping[str, Answer], *, is_sampled: bool = False
) -> None:
    """Same tokens, and log-probabilities within rounding of float32; ties are left out.

    Sampled tokens do not depend on ties between the best two, so none is left out there.
    """
    assert want.keys() == got.keys()
    clear = [name for name in want if is_sampled or want[name].margin >= TIE]
    assert len(clear) >= 0.8 * len(want), "too many ties for a test"
    for name in clear:
        pairs = zip(
            (want[name], *want[name].siblings), (got[name], *got[name].siblings), strict=True
        )
        for wanted, gotten in pairs:
            assert gotten.tokens == wanted.tokens, f"{name}: other tokens"
            error = max(abs(a - b) for a, b in zip(wanted.logprobs, gotten.logprobs, strict=True))
            assert error <= MAX_LOGPROB_ERROR, f"{name}: log-probability is off by {error}"


def assert_clean(engine: Engine) -> None:
    """No block, pin, copy, request or session state is left when nothing runs."""
    assert not engine.is_busy
    engine.wait_for_tiers()
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1
    offloading, worker = engine.connector.scheduler, engine.connector_worker
    leftovers: dict[str, Any] = {
        "jobs": offloading._jobs,
        "fences": offloading._block_id_to_pending_jobs,
        "offloading requests": offloading._req_status,
        "copies": engine.copier._jobs,
        "loads": worker._load_jobs,
        "unsubmitted stores": worker._unsubmitted_store_jobs,
        "busy DRAM chunks": [c for c in engine.dram.chunks.values() if c.ref_cnt],
        "protected DRAM keys": engine.dram._arrived,
        "request ids": list(_request_ids(engine.connector._side, engine.request_ids, set())),
        "swallowed faults": engine.connector._side.faults._seen,
    }
    assert not {name: value for name, value in leftovers.items() if value}


def _request_ids(thing: object, ids: Set[str], seen: set[int]) -> Iterator[str]:
    """Request ids that some mapping or set of ours, however deep, still has as a key."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, (Mapping, Set)):
        yield from (key for key in thing if isinstance(key, str) and key in ids)
    if isinstance(thing, Mapping):
        parts: Iterable[object] = thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        parts = thing
    elif type(thing).__module__.startswith("agentkv."):
        names = [*getattr(thing, "__dict__", ()), *getattr(thing, "__slots__", ())]
        parts = [getattr(thing, name, None) for name in names]
    else:
        return
    for part in list(parts):
        yield from _request_ids(part, ids, seen)


def talk(
    engine: Engine,
    *,
    num_sessions: int,
    num_turns: int,
    first_tokens: int = 200,
    more_tokens: int = 50,
    num_tokens: int = 8,
    concurrency: int = 4,
    sampling: Mapping[str, Any] | None = None,
    between: Callable[[Engine, int], object] | None = None,
    follow: Mapping[str, Answer] | None = None,
) -> dict[str, Answer]:
    """Sessions of several turns; each prompt is the one before, its answer, and a tool's output.

    `between(engine, turn)` runs during the pauses. With `follow` the prompts are made of these
    answers instead of the engine's own: the same prompts as in the run they come from.
    """
    prompts = {s: prompt_of(s, first_tokens) for s in range(num_sessions)}
    answers: dict[str, Answer] = {}
    for turn in range(num_turns):
        asks = [
            Ask(f"s{s}-t{turn}", prompts[s], num_tokens, session=f"s{s}", sampling=sampling or {})
            for s in prompts
        ]
        answers |= engine.run(asks, concurrency=concurrency)
        for s in prompts:
            answer = (follow or answers)[f"s{s}-t{turn}"]
            tool_output = prompt_of(1000 + 37 * s + turn, more_tokens)
            prompts[s] = chain(prompts[s], answer.tokens, tool_output)
        if between is not None:
            between(engine, turn)
    return answers


def assert_talks_alike(base: Engine, engine: Engine, **sessions: Any) -> dict[str, Answer]:
    """Has both engines talk (see `talk`) and compares; returns the right answers."""
    want = talk(base, **sessions)
    got = talk(engine, **sessions, follow=want)
    assert_exact(want, got, is_sampled=bool(sessions.get("sampling")))
    return want


def traffic(engine: Engine, turn: int) -> None:
    """Requests that end with this turn: they push paused sessions out of a small pool."""
    _push(engine, turn, {"last_turn": True})


def stored_traffic(engine: Engine, turn: int) -> None:
    """Requests that may return: they push paused sessions out of the pool and compete in DRAM."""
    _push(engine, turn, None)


def _push(engine: Engine, turn: int, tag: Mapping[str, Any] | None) -> None:
    seeds = range(5000 + 100 * turn, 5012 + 100 * turn)
    engine.run([Ask(f"traffic{seed}", prompt_of(seed, 300), 2, tag=tag) for seed in seeds])
