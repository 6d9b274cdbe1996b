"""What `agentkv explain` prints: a block for each pause, readable from 80 letters on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from agentkv.config_values import format_size
from agentkv.explain import PauseStory, Record

ACTIONS = ("hold", "swap", "recompute")
_LABEL_WIDTH = 10
_UNITS = (
    "Costs are seconds of delay; a second of held KV counts as much as others lack its room (the"
    " pressure, 0 to 1). In brackets: what was chosen. Median: the cost if the wait is its median."
    " Regret: the cost above that of the best action, had the wait been known. Expected costs are"
    " the policy's own: it weighs reloads by the pressure, too."
)


def print_stories(session: str, stories: Sequence[PauseStory], out: Console | None = None) -> None:
    """The session, each of its pauses, and what the numbers mean."""
    out = out or Console(markup=False, emoji=False)
    out.print(_headline(session, stories), highlight=False)
    has_scopes = len({story.scope for story in stories}) > 1
    for story in stories:
        out.print()
        out.print(_title(story, has_scopes=has_scopes))
        out.print(_block(story))
    if stories:
        out.print()
        out.print(Text(_UNITS, style="dim"))


def _headline(session: str, stories: Sequence[PauseStory]) -> Text:
    over = [story for story in stories if story.resume is not None]
    waited_s = sum(story.resume.get("wait_s") or 0.0 for story in over if story.resume)
    known = [story.regret_s for story in over if story.regret_s is not None]
    text = Text.assemble("Session ", (session, "bold"), f": {_count(len(stories), 'pause')}")
    if over:
        text.append(f", {_s(waited_s)} waited")
    if known:
        text.append(f", regret {_s(sum(known))} in {_count(len(known), 'pause')}")
    return text


def _title(story: PauseStory, *, has_scopes: bool) -> Text:
    first = story.decisions[0] if story.decisions else None
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(story.began_at_s))
    if first is None:
        where = "Pause whose beginning the ledger does not have any more"
        return Text(f"{where} · {began}", style="bold")
    parts = [f"Pause after turn {first.get('turn')}", began, _tool(first)]
    if has_scopes:
        parts.append(f"tenant {story.scope or '-'}")
    return Text(" · ".join(parts), style="bold")


def _block(story: PauseStory) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, style="cyan")
    grid.add_column(overflow="fold")
    if story.decisions:
        grid.add_row("context", _context(story.decisions[-1]))
        grid.add_row("predicted", _prediction(story.decisions[0]))
    for event in story.events():
        grid.add_row(_when(event, story), _event(event))
    grid.add_row("returned", _return(story))
    if costs := _costs(story):
        grid.add_row("costs", _cost_table(costs))
    if story.resume is not None:
        grid.add_row("regret", _regret(story.resume))
    return grid


def _context(record: Record) -> str:
    """As last seen: before somebody needs memory nobody looks at what is shared."""
    size = format_size(record.get("kv_bytes") or 0)
    return f"{record.get('context_tokens') or 0:,} tokens, {size} of its own KV"


def _prediction(record: Record) -> str:
    if record.get("estimate_p50_s") is None:
        return "nothing"
    text = f"{_s(record['estimate_p50_s'])} (median)"
    if record.get("estimate_p90_s") is not None:
        low, high = record.get("estimate_p10_s"), record["estimate_p90_s"]
        text += f", 8 of 10 within {_s(low)} to {_s(high)}"
    rest = []
    if record.get("estimate_source"):
        rest.append(f"from {record['estimate_source']}")
    if record.get("num_observed"):
        rest.append(f"{record['num_observed']:,} seen")
    if record.get("confidence") is not None:
        rest.append(f"confidence {record['confidence']:.2g}")
    if (record.get("chance_ended") or 0) >= 0.01:
        rest.append(f"{record['chance_ended']:.0%} that no turn follows")
    return f"{text}; {', '.join(rest)}" if rest else text


def _when(event: Record, story: PauseStory) -> str:
    if event.get("kind") == "pause":
        return "decided"
    return f"+{_s(max(0.0, event.get('t', 0.0) - story.began_at_s))}"


def _event(event: Record) -> Text:
    if event.get("kind") == "park":
        whole = "" if event.get("is_whole", True) else ", not all of it"
        text = f": {event.get('num_blocks', 0):,} blocks{whole}"
        return Text.assemble(("parked", "magenta"), f" on {event.get('tier')}{text}")
    action = str(event.get("action"))
    return Text.assemble((action, _style(action)), f": {event.get('reason')}")


def _return(story: PauseStory) -> str:
    resume = story.resume
    if resume is None:
        return "the session ended" if story.end_at_s is not None else "not yet"
    tokens = {
        "from the GPU": resume.get("gpu_hit_tokens") or 0,
        "from DRAM": resume.get("dram_hit_tokens") or 0,
        "computed again": resume.get("recomputed_tokens") or 0,
    }
    tokens["new"] = max(0, (resume.get("prompt_tokens") or 0) - sum(tokens.values()))
    found = ", ".join(f"{count:,} {where}" for where, count in tokens.items() if count)
    text = f"after {_s(resume.get('wait_s'))} with {found or 'no'} tokens"
    for name, count in (resume.get("promoted_tokens") or {}).items():
        text += f"; {count:,} came up from {name}"
    return text


def _costs(story: PauseStory) -> list[tuple[str, Any, dict[str, float]]]:
    """(label, action taken, costs by action): as expected at each decision, and as known now."""
    rows = []
    for record in story.decisions:
        label = "expected" if record is story.decisions[0] else _when(record, story)
        if record.get("costs_by") == "median":
            label += ", median"
        rows.append((label, record.get("action"), record.get("costs_s")))
    if story.resume is not None:
        rows.append(("in hindsight", story.resume.get("action"), story.resume.get("hindsight_s")))
    known = [(label, action, _known(costs or {})) for label, action, costs in rows]
    return [row for row in known if row[2]]


def _known(costs: Mapping[str, float | None]) -> dict[str, float]:
    return {name: cost for name, cost in costs.items() if cost is not None}


def _cost_table(rows: Sequence[tuple[str, Any, dict[str, float]]]) -> RenderableType:
    """In brackets: what was chosen. Green: the cheapest."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for _ in ACTIONS:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(name, "dim") for name in ACTIONS))
    for label, taken, costs in rows:
        best = min(costs, key=costs.__getitem__)
        cells = [
            Text(
                f"[{_s(costs.get(name))}]" if name == taken else f"{_s(costs.get(name))} ",
                "green" if name == best else "",
            )
            for name in ACTIONS
        ]
        table.add_row(label, *cells)
    return table


def _regret(resume: Record) -> Text:
    regret_s, best = resume.get("regret_s"), resume.get("best_action")
    if regret_s is None:
        return Text("not known: the engine had forgotten what it decided", style="dim")
    cost = "" if resume.get("cost_s") is None else f"it cost {_s(resume['cost_s'])}"
    if regret_s <= 0:
        return Text.assemble(("none", "green"), f": {cost}, nothing was cheaper")
    return Text.assemble((_s(regret_s), "red"), f": {cost}; {best} would have been best")


def _tool(record: Record) -> str:
    tool, kind = record.get("tool"), record.get("command_class")
    if tool is None:
        return "tool not known"
    return f"{tool} ({kind})" if kind else str(tool)


def _style(action: str) -> str:
    return {"hold": "green", "swap": "yellow", "recompute": "red"}.get(action, "")


def _s(seconds: float | None) -> str:
    """Three digits: "31 ms", "12.4 s", "1,830 s"."""
    if seconds is None:
        return "-"
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.1 or seconds == 0 else f"{seconds * 1e3:.3g} ms"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
