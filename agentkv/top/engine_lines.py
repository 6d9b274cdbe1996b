"""The engines on the screen: how full each pool is, and what the tiers below it hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.text import Text

from agentkv.config_values import format_size
from agentkv.top.figures import EngineFigures, Figures, TierFigures
from agentkv.top.history import History, Value
from agentkv.top.marks import WIDE, bar, count, labelled, sparkline
from agentkv.top.rows import Row


def engine_lines(
    figures: Figures, history: History, rows: Sequence[Row], *, width: int, max_lines: int
) -> list[Text]:
    """A line for each pool and one for its tiers; where that is too much, fewer of the latter."""
    engines = figures.engines
    kept_share = _kept_share(figures, rows)
    pools = [_pool_line(each, history, kept_share, width) for each in engines]
    tiers = [_tier_line([each], history, width) for each in engines]
    if len(pools) + sum(1 for line in tiers if line) <= max_lines:
        pairs = zip(pools, tiers, strict=True)
        return [line for pair in pairs for line in pair if line is not None]
    shown = pools[: max(1, max_lines - 2)]
    rest = len(pools) - len(shown)
    more = [labelled("", f"and {rest} more engine{'s' if rest > 1 else ''}")] if rest else []
    together = _tier_line(engines, history, width)
    return [*shown, *more, *([together] if together else [])]


def _pool_line(
    engine: EngineFigures, history: History, kept_share: float | None, width: int
) -> Text:
    label = f"engine {engine.rank}"
    if not engine.pool_blocks:
        return labelled(label, "its pool is not known yet")
    kept = 0.0 if kept_share is None else min(kept_share, 1 - engine.used_share)
    used = engine.pool_blocks - engine.free_blocks
    bar_width, line_width = (40, 30) if width >= WIDE else (12, 8)
    text = labelled(label, "pool ")
    text.append(bar([(engine.used_share, "█"), (kept, "▒")], bar_width), "cyan")
    said = f" {count(used)}/{count(engine.pool_blocks)} run"
    said += f", ≤{kept:.0%} kept" if kept_share else ""
    text.append(said + " ")
    used_share = partial(_used_share, rank=engine.rank)
    text.append(_line_of(history, used_share, line_width, 1.0), "cyan")
    text.append(f" pressure {engine.pressure:.2f} ", "bold red" if engine.pressure > 0.5 else "")
    if width >= WIDE:
        pressure = partial(_pressure, rank=engine.rank)
        text.append(_line_of(history, pressure, line_width, 1.0), "red")
    return text


def _kept_share(figures: Figures, rows: Sequence[Row]) -> float | None:
    """At most so much of the pool is KV of paused sessions: what they share counts for each.

    None where it is not known: sessions of others are not listed, nor which engine they are on.
    """
    blocks = sum(engine.pool_blocks for engine in figures.engines)
    if len(figures.engines) != 1 or not figures.block_tokens or not blocks:
        return None
    if len(rows) < sum(figures.num_sessions.values()):
        return None
    tokens = sum(row.context_tokens for row in rows if row.is_paused and not row.is_given_up)
    return tokens / figures.block_tokens / blocks


def _tier_line(engines: Sequence[EngineFigures], history: History, width: int) -> Text | None:
    names = list(dict.fromkeys(name for engine in engines for name in engine.tiers))
    if not names:
        return None
    ranks = [engine.rank for engine in engines]
    text = labelled("tiers" if len(engines) > 1 else "", "")
    for name in names:
        found = [engine.tiers[name] for engine in engines if name in engine.tiers]
        used, size = _used_and_size(found)
        text.append(f"{name} ", "bold")
        if size:
            text.append(bar([(used / size, "█")], 20 if width >= WIDE else 6), "magenta")
            text.append(" ")
        text.append(format_size(int(used)) + (f"/{format_size(int(size))}" if size else ""))
        if not all(each.is_available for each in found):
            text.append(" left alone", "bold red")
        bytes_of = partial(_tier_bytes, ranks=ranks, name=name)
        line_width = 30 if width >= WIDE else 8
        text.append(f" {_line_of(history, bytes_of, line_width, size)}  ", "magenta")
    return text


def _used_and_size(tiers: Sequence[TierFigures]) -> tuple[float, float]:
    """Bytes over all of them; the size is 0 where one has none that is known."""
    sizes = [tier.size_bytes or 0.0 for tier in tiers]
    return sum(tier.used_bytes for tier in tiers), sum(sizes) if all(sizes) else 0.0


def _tier_bytes(figures: Figures, ranks: Sequence[int], name: str) -> float:
    tiers = [engine.tiers for engine in figures.engines if engine.rank in ranks]
    return sum(each[name].used_bytes for each in tiers if name in each)


def _line_of(history: History, value: Value, width: int, top: float) -> str:
    """Of the last minutes; `top` 0: as high as it ever was. Nothing after a single look."""
    if not history.span_s:
        return ""
    series = history.series(value, width)
    highest = max((each for each in series if each is not None), default=0.0)
    return sparkline(series, top or highest)


def _of(figures: Figures, rank: int) -> EngineFigures | None:
    return next((engine for engine in figures.engines if engine.rank == rank), None)


def _used_share(figures: Figures, rank: int) -> float | None:
    engine = _of(figures, rank)
    return None if engine is None else engine.used_share


def _pressure(figures: Figures, rank: int) -> float | None:
    engine = _of(figures, rank)
    return None if engine is None else engine.pressure
