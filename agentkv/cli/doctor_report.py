"""What `agentkv doctor` prints: a block for each fault of a session, a line for each check."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentkv.doctor.checks import Check, State
from agentkv.doctor.diagnose import Diagnosis
from agentkv.doctor.diagnosis_value import Group, groups, money
from agentkv.doctor.finding import Finding, Severity
from agentkv.doctor.log_file import Skipped

_SEVERITY_STYLES = {Severity.HIGH: "bold red", Severity.MEDIUM: "yellow", Severity.LOW: "cyan"}
_STATE_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}
_MAX_GROUPS = 20
_MAX_SKIPPED = 3


def _console() -> Console:
    """Piped, it is wide enough for a line of text."""
    return Console(width=max(80, min(110, shutil.get_terminal_size((100, 24)).columns)))


def print_diagnosis(
    diagnosis: Diagnosis,
    price_per_million: float | None,
    *,
    has_template: bool,
    out: Console | None = None,
) -> None:
    """The dearest fault first."""
    out = out or _console()
    out.print(_headline(diagnosis, price_per_million), highlight=False)
    found = groups(diagnosis.findings)
    for group in found[:_MAX_GROUPS]:
        out.print()
        out.print(_title(group, price_per_million), highlight=False)
        out.print(Padding(_block(group), (0, 0, 0, 2)), highlight=False)
    if len(found) > _MAX_GROUPS:
        out.print(f"\n… and {len(found) - _MAX_GROUPS} more (--json FILE has all)")
    _print_skipped(out, "not understood", diagnosis.skipped)
    _print_skipped(out, "not printed by the template", diagnosis.unprinted)
    if any(finding.is_estimate and finding.tokens_lost for finding in diagnosis.findings):
        out.print()
        out.print(Text(_estimate_note(has_template=has_template), style="dim"))


def _estimate_note(*, has_template: bool) -> str:
    more = "a model's directory" if has_template else "--template with a model's directory"
    return (
        "Tokens are estimated: four letters each, or as the server's own count of the prompt says."
        f" {more[0].upper()}{more[1:]} counts them."
    )


def _headline(diagnosis: Diagnosis, price_per_million: float | None) -> Text:
    text = Text(
        f"{_count(diagnosis.num_requests, 'request')} in "
        f"{_count(diagnosis.num_sessions, 'session')}; "
        f"{diagnosis.num_compared:,} go on from an earlier request"
    )
    if not diagnosis.findings:
        return text.append("\nNothing breaks the prefix.", "green")
    share = diagnosis.tokens_lost / max(1, diagnosis.tokens_known)
    text.append(f"\n{diagnosis.tokens_lost:,} tokens computed again, {share:.0%} of what was known")
    return text.append(_money(diagnosis.tokens_lost, price_per_million))


def _money(tokens: int, price_per_million: float | None) -> str:
    cost = money(tokens, price_per_million)
    return "" if cost is None else f", price {cost:,.2f}" if cost >= 1 else f", price {cost:.2g}"


def _title(group: Group, price_per_million: float | None) -> Text:
    title = group.findings[0].title
    return Text.assemble(
        (group.severity.value, _SEVERITY_STYLES[group.severity]),
        " · ",
        (f"{title[0].upper()}{title[1:]}", "bold"),
        f" · {group.cause.value}\n",
        f"session {group.session}{_price_of(group, price_per_million)}",
    )


def _price_of(group: Group, price_per_million: float | None) -> str:
    if group.is_hidden:
        return ", behind another fault of the same turns"
    if not group.tokens_lost:
        return ""
    return f", {group.tokens_lost:,} tokens{_money(group.tokens_lost, price_per_million)}"


def _block(group: Group) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=5, style="dim")
    table.add_column(overflow="fold")
    worst = max(group.findings, key=lambda finding: finding.tokens_lost)
    table.add_row("turns", _turns(group.findings))
    table.add_row("where", f"{worst.where}{_block_of(worst)}")
    table.add_row("seen", f"{worst.evidence} (lines {worst.after_line} and {worst.line})")
    table.add_row("fix", worst.fix)
    return table


def _block_of(finding: Finding) -> str:
    if finding.block is None:
        return ""
    block = finding.block
    return f": block {block.index:,} of {block.num_blocks:,}, token {block.token:,}"


def _turns(findings: Sequence[Finding]) -> str:
    """As ranges: 2-5, 8."""
    turns = sorted({finding.turn for finding in findings})
    runs = groupby(enumerate(turns), key=lambda each: each[1] - each[0])
    spans = [[turn for _, turn in run] for _, run in runs]
    names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in spans]
    shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    return f"{shown} ({len(turns)})" if len(turns) > 1 else shown


def _print_skipped(out: Console, what: str, skipped: Sequence[Skipped]) -> None:
    if not skipped:
        return
    out.print()
    out.print(f"{_count(len(skipped), 'line')} {what}:", highlight=False)
    for each in skipped[:_MAX_SKIPPED]:
        out.print(Text(f"  line {each.line}: {each.reason}"))
    if len(skipped) > _MAX_SKIPPED:
        out.print("  …")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_checks(checks: Sequence[Check], out: Console | None = None) -> None:
    """A line for what was seen, one more for how to mend it."""
    out = out or _console()
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=4)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        state = Text(check.state.value, _STATE_STYLES[check.state])
        table.add_row(state, check.name, Text(check.said))
        if check.state is not State.OK and check.mend:
            table.add_row("", "", Text(f"→ {check.mend}", "dim"))
    out.print(table, highlight=False)
