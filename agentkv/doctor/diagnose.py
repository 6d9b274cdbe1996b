"""A whole log: every request held against the one that it goes on from.

    request ─► Threads: what it goes on from ─► Judge: differences and cost ─► findings

Where: `agentkv doctor LOG`. Reads the log once, in order, and keeps of it what later requests may
go on from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentkv.doctor.causes import Cause
from agentkv.doctor.costs import BLOCK_TOKENS, NO_COST, cost_of
from agentkv.doctor.finding import Finding, severity_of
from agentkv.doctor.hints import Hinted, lost_hints
from agentkv.doctor.judge import Costed, Judge
from agentkv.doctor.log_file import Skipped
from agentkv.doctor.request import Request
from agentkv.doctor.template import Template
from agentkv.doctor.threads import Node, Relation, Threads

_GOES_ON = (Relation.APPEND, Relation.EDIT, Relation.COMPACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`num_compared`: requests that go on from another one; `tokens_known`: what those could have
    found. `unprinted`: lines that the template could not print, with why."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    unprinted: tuple[Skipped, ...]
    num_requests: int
    num_compared: int
    num_sessions: int
    tokens_known: int

    @property
    def tokens_lost(self) -> int:
        """Computed again in all: of a turn's findings the dearest counts, they lose the same."""
        worst: Counter[int] = Counter()
        for finding in self.findings:
            worst[finding.line] = max(worst[finding.line], finding.tokens_lost)
        return sum(worst.values())


def diagnose(
    entries: Iterable[Request | Skipped],
    template: Template | None = None,
    *,
    block_tokens: int = BLOCK_TOKENS,
) -> Diagnosis:
    """Never raises for what is in the log."""
    run = _Run(Judge(template, block_tokens))
    for entry in entries:
        if isinstance(entry, Skipped):
            run.skipped.append(entry)
        else:
            run.add(entry)
    return run.result()


@dataclass(slots=True)
class _Run:
    judge: Judge
    threads: Threads = field(default_factory=Threads)
    skipped: list[Skipped] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    compactions: list[tuple[Node, Finding]] = field(default_factory=list)
    hints: dict[str, list[Hinted]] = field(default_factory=dict)
    num_requests: int = 0
    num_compared: int = 0
    tokens_known: int = 0

    def add(self, request: Request) -> None:
        node = self.threads.add(request)
        self.num_requests += 1
        hinted = Hinted(node.turn, request.line, request.hints)
        self.hints.setdefault(node.session, []).append(hinted)
        former = node.previous
        if former is not None and node.relation in _GOES_ON:
            self.num_compared += 1
            found = self.judge.judge(node)
            known = [cost_of(former.request, request, 0), *(each.cost for each in found)]
            self.tokens_known += max(cost.tokens_known for cost in known)
            self._keep(node, former, found)
        node.previous = None  # Else a log would be kept whole.

    def _keep(self, node: Node, former: Node, found: list[Costed]) -> None:
        for index, costed in enumerate(found):
            finding = _finding(node, former, costed, is_hidden=index > 0)
            if node.relation is Relation.COMPACTION:
                self.compactions.append((former, finding))
            else:
                self.found.append(finding)

    def result(self) -> Diagnosis:
        # A history that went on after all was not summarised: the other was a sub-agent's.
        real = [finding for former, finding in self.compactions if not former.is_extended]
        lost = [
            _lost_hint(session, hinted, hint, said)
            for session, each in self.hints.items()
            for hinted, hint, said in lost_hints(each)
        ]
        findings = sorted([*self.found, *real, *lost], key=lambda f: (f.line, f.is_hidden))
        return Diagnosis(
            findings=tuple(findings),
            skipped=tuple(self.skipped),
            unprinted=tuple(self.judge.unprinted),
            num_requests=self.num_requests,
            num_compared=self.num_compared,
            num_sessions=len(self.hints),
            tokens_known=self.tokens_known,
        )


def _finding(node: Node, former: Node, costed: Costed, *, is_hidden: bool) -> Finding:
    difference, cost = costed.difference, costed.cost
    is_free = cost is NO_COST
    return Finding(
        severity=severity_of(difference.cause, cost.tokens_lost, cost.tokens_known),
        session=node.session,
        turn=node.turn,
        line=node.request.line,
        after_line=former.request.line,
        where=difference.where,
        cause=difference.cause,
        tokens_lost=cost.tokens_lost,
        is_estimate=cost.is_estimate,
        evidence=difference.evidence,
        is_hidden=is_hidden and not is_free,
        block=costed.block,
    )


def _lost_hint(session: str, hinted: Hinted, hint: str, said: str) -> Finding:
    return Finding(
        severity=severity_of(Cause.HINTS_LOST, 0, 0),
        session=session,
        turn=hinted.turn,
        line=hinted.line,
        after_line=hinted.line,
        where=hint,
        cause=Cause.HINTS_LOST,
        tokens_lost=0,
        is_estimate=False,
        evidence=said,
    )
