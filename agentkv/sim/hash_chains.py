"""Sessions out of requests that name their blocks by hash (Mooncake, Dynamo, kv-cache-tester).

A request belongs to the session it names. Without a name it continues the session whose last
request it extends: whose full blocks it begins with. What it shares with earlier requests of the
session follows from the hashes; a prefix that several sessions share is the run of blocks that
their first requests have in common with the very first request of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentkv.sim.trace import TraceSession, TraceTurn

TOKENS_PER_HASH = 512  # of Mooncake's traces


@dataclass(frozen=True, slots=True)
class HashRow:
    """One request. `at_s`: when it came; `delay_s`: since the session's last answer, if known."""

    session: str | None
    at_s: float
    delay_s: float | None
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]


@dataclass(slots=True)
class _Chain:
    name: str
    rows: list[HashRow] = field(default_factory=list)


def sessions_of(
    rows: Iterable[HashRow], *, tokens_per_hash: int = TOKENS_PER_HASH
) -> list[TraceSession]:
    """The sessions in order of their first request."""
    chains: dict[str, _Chain] = {}
    by_end: dict[int, _Chain] = {}  # by the last full block of a session's last request
    for row in rows:
        full = _full(row, tokens_per_hash)
        chain = _continued(row, full, chains, by_end, tokens_per_hash)
        if chain is None:
            name = row.session if row.session is not None else f"chain-{len(chains)}"
            chain = chains[name] = _Chain(name)
        elif last := _full(chain.rows[-1], tokens_per_hash):
            by_end.pop(last[-1], None)
        chain.rows.append(row)
        if full:
            by_end[full[-1]] = chain
    first = next(iter(chains.values())).rows[0].hashes if chains else ()
    return [_session(chain, first, tokens_per_hash) for chain in chains.values()]


def _full(row: HashRow, tokens_per_hash: int) -> Sequence[int]:
    return row.hashes[: row.prompt_tokens // tokens_per_hash]


def _continued(
    row: HashRow,
    full: Sequence[int],
    chains: dict[str, _Chain],
    by_end: dict[int, _Chain],
    tokens_per_hash: int,
) -> _Chain | None:
    if row.session is not None:
        return chains.get(row.session)
    # A hash stands for its whole prefix, so the end of a chain is enough.
    for block in reversed(full):
        chain = by_end.get(block)
        if chain is not None:
            return chain
    return None


def _session(chain: _Chain, first: Sequence[int], tokens_per_hash: int) -> TraceSession:
    turns: list[TraceTurn] = []
    rows = chain.rows
    for i, row in enumerate(rows):
        source, shared = _best_prefix(rows, i)
        after = rows[i + 1] if i + 1 < len(rows) else None
        turns.append(
            TraceTurn(
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                prefix_turn=source,
                prefix_tokens=min(shared * tokens_per_hash, row.prompt_tokens),
                wait_s=_wait_s(row, after),
            )
        )
    common = min(_common(rows[0].hashes, first) * tokens_per_hash, rows[0].prompt_tokens)
    return TraceSession(chain.name, tuple(turns), "trace", common)


def _best_prefix(rows: Sequence[HashRow], i: int) -> tuple[int, int]:
    """The earlier request of the last few that shares most, and how many blocks."""
    best, most = -1, 0
    for j in range(i - 1, max(-1, i - 9), -1):
        shared = _common(rows[i].hashes, rows[j].hashes)
        if shared > most:
            best, most = j, shared
            if most >= min(len(rows[i].hashes), len(rows[j].hashes)) - 1:
                break
    return best, most


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix; hashes chain, so one look-up tells of all before it."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _wait_s(row: HashRow, after: HashRow | None) -> float | None:
    """Without a delay: the time between the requests, as far as it is not the answer's own."""
    if after is None:
        return None
    return after.delay_s if after.delay_s is not None else max(0.0, after.at_s - row.at_s)
