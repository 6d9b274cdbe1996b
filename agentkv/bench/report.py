"""What the bench shows and writes: a line for each comparison, and the JSON file.

Where: last step; the values come from `run`. A peer that is missing has its line too, with why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from agentkv.bench.rates import Rate, RateRatio
from agentkv.bench.rounds import LOAD, STORE, WAYS
from agentkv.bench.run import PEERS, SizeResult, TierResult
from agentkv.config_values import format_size

OURS = "agentkv"
WORDS = {"redis": {STORE: "set", LOAD: "get"}}
LABELS = {"vllm_fs": "vLLM fs", "lmcache": "LMCache", "raw": "raw socket"}


def word(tier: str, way: str) -> str:
    """What a way is called where it matters: Redis sets and gets."""
    return WORDS.get(tier, {}).get(way, way)


def bench_table(results: Sequence[TierResult]) -> Table:
    """At most 80 letters wide; rates in GB/s, of the median round."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("tier")
    table.add_column("block", justify="right")
    table.add_column("way")
    for name in ("GB/s", "p10-p90"):
        table.add_column(name, justify="right")
    table.add_column("peer")
    for name in ("GB/s", "p10-p90", "ratio"):
        table.add_column(name, justify="right")
    for result in results:
        for row in _rows(result):
            table.add_row(*row)
        table.add_section()
    return table


def notes(results: Sequence[TierResult]) -> Iterator[str]:
    """A line for everything that was not measured, and why."""
    for result in results:
        if result.reason is not None:
            yield f"{result.tier}: not measured: {result.reason}"
        for name in PEERS[result.tier]:
            reasons = {s.missing[name] for s in result.sizes if name in s.missing}
            for reason in sorted(reasons):
                yield f"{result.tier}: {LABELS.get(name, name)} not measured: {reason}"


def _rows(result: TierResult) -> Iterator[list[str]]:
    if result.reason is not None:
        yield [result.tier, "", "", "-", "", "", "-", "", "-"]
    for size in result.sizes:
        for way in WAYS:
            for index, peer in enumerate(PEERS[result.tier]):
                yield _row(result.tier, size, way, peer, is_first=index == 0)


def _row(tier: str, size: SizeResult, way: str, peer: str, *, is_first: bool) -> list[str]:
    ours = size.rates[OURS][way]
    head = [tier, format_size(size.block_bytes), word(tier, way), *_cells(ours)]
    if not is_first:
        head = [""] * len(head)
    label = escape(LABELS.get(peer, peer))
    if peer not in size.rates:
        return [*head, label, "-", "", "-"]
    ratio = RateRatio.of(ours, size.rates[peer][way])
    return [*head, label, *_cells(size.rates[peer][way]), f"{ratio.ratio:.2f}"]


def _cells(rate: Rate) -> tuple[str, str]:
    return f"{rate.median:.2f}", f"{rate.p10:.2f}-{rate.p90:.2f}"


def json_value(results: Sequence[TierResult], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """An object for each tier, and what it takes to repeat the run."""
    return {result.tier: _tier_value(result) for result in results} | {"provenance": provenance}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _tier_value(result: TierResult) -> dict[str, Any]:
    """Ratios by peer, each by block size; null where there is none, with a reason."""
    value: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for peer in PEERS[result.tier]:
        ratios = [_ratios(size, peer) for size in result.sizes]
        for way in WAYS:
            value[f"{word(result.tier, way)}_ratio_to_{peer}"] = _by_size(
                result, [r[way].ratio if r else None for r in ratios]
            )
        value[f"ratio_to_{peer}"] = _by_size(
            result, [min(r[way].ratio for way in WAYS) if r else None for r in ratios]
        )
        missing = [s.missing[peer] for s in result.sizes if peer in s.missing]
        if result.reason is not None or missing:
            reasons[peer] = result.reason or missing[0]
    sizes = {format_size(size.block_bytes): _size_value(result.tier, size) for size in result.sizes}
    return {**value, "reasons": reasons, **result.facts, "block_sizes": sizes}


def _by_size(result: TierResult, ratios: Sequence[float | None]) -> dict[str, float | None] | None:
    """None if the tier was not measured at all."""
    if not result.sizes:
        return None
    sizes = [format_size(size.block_bytes) for size in result.sizes]
    return dict(zip(sizes, ratios, strict=True))


def _ratios(size: SizeResult, peer: str) -> dict[str, RateRatio] | None:
    if peer not in size.rates:
        return None
    ours, theirs = size.rates[OURS], size.rates[peer]
    return {way: RateRatio.of(ours[way], theirs[way]) for way in WAYS}


def _size_value(tier: str, size: SizeResult) -> dict[str, Any]:
    names = [name for name in PEERS[tier] if name in size.rates]
    return {
        "block_bytes": size.block_bytes,
        "bytes_per_round": size.num_bytes,
        "gb_per_s": {
            name: {word(tier, way): asdict(rate) for way, rate in rates.items()}
            for name, rates in size.rates.items()
        },
        "ratios": {
            name: {
                word(tier, way): asdict(each) for way, each in (_ratios(size, name) or {}).items()
            }
            for name in names
        },
        "how": {name: dict(facts) for name, facts in size.facts.items()},
        "missing": dict(size.missing),
    }
