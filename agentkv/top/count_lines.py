"""What was counted, on the screen: sessions now; decisions, forecasts and resumes so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from agentkv.top.figures import Amounts, Buckets, Counted, Figures, at_most
from agentkv.top.history import History
from agentkv.top.marks import ACTION_STYLES, count, labelled, seconds
from agentkv.top.rows import Row


def count_lines(figures: Figures, history: History, rows: Sequence[Row]) -> list[Text]:
    """Sessions, decisions, forecasts and resumes; what is not known yet has no line."""
    recent = history.recent()
    counted = figures.counted
    lines = [_session_line(figures, rows)]
    if counted.decisions:
        lines.append(_decision_line(figures, history))
    if sum(counted.forecasts.values()):
        lines.append(labelled("forecasts", _calibration(counted.forecasts, recent)))
    if found := _found(counted.resume_tokens):
        lines.append(labelled("resumed", found + _again_lately(recent)))
    if sum(counted.prefetches.values()):
        lines.append(_prefetch_line(counted, recent))
    if waits := _wait_parts(figures):
        lines.append(labelled("1st token", f"p50/p95: {' · '.join(waits)}"))
    return lines


def _session_line(figures: Figures, rows: Sequence[Row]) -> Text:
    paused = [row for row in rows if row.is_paused]
    parts = [
        ("running", figures.num_sessions.get("running", 0), "bold"),
        ("resuming", figures.num_sessions.get("resuming", 0), ""),
        ("waiting", figures.requests_waiting, ""),
        ("held", sum(1 for row in paused if not row.is_given_up), "green"),
        ("swapped", sum(1 for row in paused if row.is_swapped), "yellow"),
        ("dropped", sum(1 for row in paused if row.is_dropped), "red"),
    ]
    parts += [("held back", figures.held_back, "bold red")] if figures.held_back else []
    text = labelled("sessions")
    num_all = sum(figures.num_sessions.values())
    if num_all > len(rows):
        text.append(f"listed {len(rows):,} of {num_all:,}  ", "dim")
    for name, number, style in parts:
        text.append(f"{name} ", "dim")
        text.append(f"{number:,}  ", style)
    return text


def _decision_line(figures: Figures, history: History) -> Text:
    """Since the server's start, and behind "+" in the last minutes."""
    recent = history.recent()
    text = labelled("decided")
    for name, style in ACTION_STYLES.items():
        text.append(f"{name} ", style)
        text.append(count(figures.counted.decisions.get(name, 0.0)))
        if recent is not None:
            text.append(f" +{count(recent.decisions.get(name, 0.0))}", "dim")
        text.append("  ")
    text.append("regret ", "dim")
    text.append(seconds(sum(figures.counted.regret_s.values())))
    if recent is not None:
        said = seconds(sum(recent.regret_s.values()))
        text.append(f" +{said} in {seconds(history.span_s)}", "dim")
    return text


def _calibration(outcomes: Amounts, recent: Counted | None) -> str:
    """Eight of ten are to be inside."""
    number = sum(outcomes.values())
    lately = "" if recent is None else _inside(recent.forecasts)
    before, after = (outcomes.get(name, 0.0) / number for name in ("earlier", "later"))
    parts = [f"{_inside(outcomes)} in their 80% range", f"lately {lately}" if lately else ""]
    parts.append(f"{before:.0%} before, {after:.0%} after it")
    return " · ".join(part for part in parts if part)


def _inside(outcomes: Amounts) -> str:
    number = sum(outcomes.values())
    return f"{outcomes.get('inside', 0.0) / number:.0%} of {count(number)}" if number else ""


def _prefetch_line(counted: Counted, recent: Counted | None) -> Text:
    begun = count(sum(counted.prefetches.values()))
    more = "" if recent is None else f" +{count(sum(recent.prefetches.values()))}"
    outcomes = counted.prefetch_outcomes
    number = sum(outcomes.values())
    parts = [f"{value / number:.0%} {name}" for name, value in _largest_first(outcomes) if value]
    return Text.assemble(labelled("prefetches", begun), (more, "dim"), "  ", ", ".join(parts))


def _found(tokens: Amounts) -> str:
    """Where the KV of resumed turns was; empty where nothing was resumed."""
    known = {source: number for source, number in tokens.items() if source != "new" and number}
    whole = sum(known.values())
    again = known.pop("recomputed", 0.0)
    if not whole:
        return ""
    parts = [f"{number / whole:.0%} {source}" for source, number in _largest_first(known)]
    return ", ".join([*parts, f"{again / whole:.0%} computed again"])


def _again_lately(recent: Counted | None) -> str:
    tokens = {} if recent is None else recent.resume_tokens
    whole = sum(number for source, number in tokens.items() if source != "new")
    return f" · lately {tokens.get('recomputed', 0.0) / whole:.0%} again" if whole else ""


def _largest_first(amounts: Amounts) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: -item[1])


def _wait_parts(figures: Figures) -> list[str]:
    """Of all first tokens, and of those of resumed turns by where most of their KV was."""
    parts = [f"all {_percentiles(figures.first_token)}"] if figures.first_token else []
    by_size = sorted(figures.resume_ttft.items(), key=lambda item: -item[1][math.inf])
    return parts + [f"{source} {_percentiles(buckets)}" for source, buckets in by_size]


def _percentiles(buckets: Buckets) -> str:
    """The histogram's bounds: what is between them is not known."""
    p50, p95 = at_most(buckets, 0.5), at_most(buckets, 0.95)
    return f"{_bound(p50, buckets)}/{_bound(p95, buckets)}"


def _bound(value: float | None, buckets: Buckets) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        last = max((bound for bound in buckets if math.isfinite(bound)), default=0.0)
        return f">{seconds(last)}"
    return f"≤{seconds(value)}"
