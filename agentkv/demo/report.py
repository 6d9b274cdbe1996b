"""What the demo shows and writes: the table of pauses, the summary, the JSON file.

Where: last step; the values come from `rows` and `summary`, the picture from `picture`.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.demo.prefetches import OUTCOMES
from agentkv.demo.rows import PauseRow
from agentkv.demo.summary import Ratio

MAX_ROWS = 25
NUM_LONGEST = 4
MAX_COMMAND_CHARS = 26
MIN_TOOL_CHARS = 6
WIDE_CHARS = 110
TOOL = "tool runs"
# Name to whether it is a number.
COLUMNS = {
    "session": False,
    "turn": True,
    TOOL: False,
    "wait\ns": True,
    "action": False,
    "KV\nfrom": False,
    "reused": True,
    "again": True,
    "ms": True,
    "stock\nagain": True,
    "stock\nms": True,
}
ACTION_STYLES = {"hold": "green", "swap": "blue", "recompute": "dark_orange3"}
TARGETS = {"hold": 1.1, "resume": 0.18, "prefetch": 1.1}


def telling_rows(rows: Sequence[PauseRow], max_rows: int = MAX_ROWS) -> list[PauseRow]:
    """At most `max_rows` rows, in their order: rows whose answers differ, the longest pauses, and
    then, from each action in turn, the largest differences in first-token time."""
    by_action: dict[str | None, list[PauseRow]] = defaultdict(list)
    for row in sorted(rows, key=_difference_s, reverse=True):
        by_action[row.action].append(row)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_action.values()))
    wrong = [row for row in rows if not row.is_same_answer]
    longest = sorted(rows, key=lambda row: row.wait_s, reverse=True)[:NUM_LONGEST]
    ranked = dict.fromkeys(row for row in (*wrong, *longest, *in_turn) if row is not None)
    chosen = set(itertools.islice(ranked, max_rows))
    return [row for row in rows if row in chosen]


def _difference_s(row: PauseRow) -> float:
    return abs(row.ttft_stock_s - row.ttft_s)


def pause_table(rows: Sequence[PauseRow], total: int, *, width: int) -> Table:
    """A row per pause, at most `width` letters wide; times of the first token in milliseconds."""
    title = "Pauses and resumes"
    if len(rows) < total:
        title += f": the {len(rows)} most telling of {total}"
    padding = int(width >= WIDE_CHARS)
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.padding = (0, padding)
    cells = [_cells(row) for row in rows]
    widths = {
        name: max(cell_len(line) for line in name.split("\n") + _plain(column))
        for name, column in zip(COLUMNS, zip(*cells, strict=True), strict=False)
    }
    # On a narrow screen the tool gives way, and no number does.
    others = sum(letters for name, letters in widths.items() if name != TOOL)
    room = max(MIN_TOOL_CHARS, width - others - (2 * padding + 1) * len(COLUMNS) - 1)
    for name, is_number in COLUMNS.items():
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=room if name == TOOL else None,
            vertical="bottom",
        )
    for row, line in zip(rows, cells, strict=True):
        table.add_row(*line, style="bold red" if not row.is_same_answer else None)
    return table


def _plain(cells: Iterable[str]) -> list[str]:
    return [Text.from_markup(cell).plain for cell in cells]


def _cells(row: PauseRow) -> list[str]:
    style = ACTION_STYLES.get(row.action or "", "dim")
    wait = f"{row.wait_s:.2f}" + ("*" if row.is_wait_cut else "")
    return [
        row.session,
        str(row.turn),
        _tool(row),
        wait,
        f"[{style}]{row.action or 'not seen'}[/]",
        row.tier or "not seen",
        f"{row.reused_tokens:,}",
        f"{row.recomputed_tokens:,}",
        f"{row.ttft_s * 1e3:.0f}",
        f"{row.recomputed_stock_tokens:,}",
        f"{row.ttft_stock_s * 1e3:.0f}",
    ]


def _tool(row: PauseRow) -> str:
    text = (row.command or row.tool or "(not named)").splitlines()[0]
    short = text if len(text) <= MAX_COMMAND_CHARS else text[: MAX_COMMAND_CHARS - 1] + "…"
    return short.replace("[", r"\[")


def summary_table(summary: Mapping[str, Any], ratios: Mapping[str, Ratio]) -> Table:
    """With and without the plugin side by side, then the ratios."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in ("agentkv", "stock vLLM"):
        table.add_column(name, justify="right")
    for level in (50, 95):
        table.add_row(
            f"first token after a pause, p{level}",
            _ms(summary[f"ttft_p{level}_s"]),
            _ms(summary[f"ttft_p{level}_stock_s"]),
        )
    table.add_row(
        "tokens computed again",
        f"{summary['tokens_recomputed']:,}",
        f"{summary['tokens_recomputed_stock']:,}",
    )
    actions = ", ".join(f"{count} {action}" for action, count in summary["actions"].items())
    table.add_row("what became of the pauses", actions, "")
    outcomes = ", ".join(
        f"{count:.0f} {outcome}"
        for outcome, count in summary["prefetch"].items()
        if outcome in OUTCOMES and count
    )
    table.add_row("what became of prefetches", outcomes or "none was started", "")
    _add_tier_rows(table, summary["tiers"])
    table.add_section()
    for name, each in ratios.items():
        table.add_row(*_ratio_cells(name, each))
    table.add_section()
    wrong = summary["token_mismatches"]
    verdict = "[green]0[/]" if wrong == 0 else f"[bold red]{wrong}[/]"
    table.add_row(f"turns whose tokens differ, of {summary['turns_compared']}", verdict, "")
    return table


def _add_tier_rows(table: Table, tiers: Mapping[str, Any]) -> None:
    """Only where KV went below DRAM."""
    if not any(tiers["parked"].values()) and not any(tiers["tokens_brought_up"].values()):
        return
    parked = ", ".join(f"{count} in {name}" for name, count in tiers["parked"].items())
    table.add_row("pauses with KV written below DRAM", parked, "")
    for name, count in tiers["resumed_from"].items():
        if count:
            what = {"none": "computed again", "gpu": "KV in the pool"}.get(name, f"KV from {name}")
            median = _ms(tiers["ttft_p50_s"].get(name))
            table.add_row(f"  resumes with {what}", f"{count}, p50 {median}", "")


def _ratio_cells(name: str, each: Ratio) -> tuple[str, str, str]:
    what = {
        "hold": "resume from the pool / vLLM's own prefix hit",
        "resume": "resume from DRAM / prefill again",
        "prefetch": "resume after a prefetch / always in the pool",
    }[name]
    if each.ratio is None:
        return what, "no valid round", ""
    style = "green" if each.ratio <= TARGETS[name] else "yellow"
    spread = f"p10 {each.p10:.2f}, p90 {each.p90:.2f}, {each.pairs} pairs"
    return (
        f"{what} ({spread})",
        f"[{style}]{each.ratio:.2f}[/] = {_ms(each.over_p50_s)}",
        f"/ {_ms(each.under_p50_s)}",
    )


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1e3:.0f} ms"


def print_report(
    console: Console,
    rows: Sequence[PauseRow],
    summary: Mapping[str, Any],
    ratios: Mapping[str, Ratio],
    *,
    waits_statement: str,
) -> None:
    """Table, what its marks mean, and the summary."""
    shown = telling_rows(rows)
    console.print(pause_table(shown, len(rows), width=console.width))
    console.print(
        "reused, again: tokens of the session's earlier prompts that were found, or had to be"
        " computed again. ms: time to the first token. stock: vLLM without agentkv."
        f" {waits_statement}",
        style="dim",
    )
    console.print(summary_table(summary, ratios))
    for each in ratios.values():
        if each.pairs_discarded:
            console.print(
                f"{each.pairs_discarded} pairs of {each.over}/{each.under} were discarded:"
                f" {'; '.join(each.problems)}",
                style="dim",
            )


def write_json(
    path: Path,
    *,
    rows: Sequence[PauseRow],
    summary: Mapping[str, Any],
    ratios: Mapping[str, Ratio],
    provenance: Mapping[str, Any],
) -> None:
    """Everything the run measured, for programs."""
    value = {
        "summary": {**summary, "ratios": {name: asdict(each) for name, each in ratios.items()}},
        "pauses": [asdict(row) for row in rows],
        "provenance": dict(provenance),
    }
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
