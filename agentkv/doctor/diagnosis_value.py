"""A diagnosis as plain objects, for `--json`, and its sums by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from agentkv.doctor.causes import Cause
from agentkv.doctor.diagnose import Diagnosis
from agentkv.doctor.finding import Finding, Severity

_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Group:
    """All findings of one class in one session; hidden ones count apart."""

    session: str
    cause: Cause
    findings: tuple[Finding, ...]

    @property
    def tokens_lost(self) -> int:
        return sum(each.tokens_lost for each in self.findings if not each.is_hidden)

    @property
    def severity(self) -> Severity:
        return min((each.severity for each in self.findings), key=_ORDER.index)

    @property
    def is_hidden(self) -> bool:
        return all(each.is_hidden for each in self.findings)


def groups(findings: Iterable[Finding]) -> list[Group]:
    """The dearest first."""
    found: dict[tuple[str, Cause], list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.session, finding.cause), []).append(finding)
    made = [Group(session, cause, tuple(each)) for (session, cause), each in found.items()]
    return sorted(made, key=lambda g: (g.is_hidden, -g.tokens_lost, _ORDER.index(g.severity)))


def money(tokens: int, price_per_million: float | None) -> float | None:
    return None if price_per_million is None else tokens * price_per_million / 1e6


def diagnosis_value(diagnosis: Diagnosis, price_per_million: float | None) -> dict[str, Any]:
    """Everything that was found, and in how much."""
    return {
        "requests": diagnosis.num_requests,
        "compared": diagnosis.num_compared,
        "sessions": diagnosis.num_sessions,
        "tokens_known": diagnosis.tokens_known,
        "tokens_lost": diagnosis.tokens_lost,
        "cost": money(diagnosis.tokens_lost, price_per_million),
        "findings": [_finding_value(each, price_per_million) for each in diagnosis.findings],
        "not_understood": [asdict(each) for each in diagnosis.skipped],
        "not_printed_by_template": [asdict(each) for each in diagnosis.unprinted],
    }


def _finding_value(finding: Finding, price_per_million: float | None) -> dict[str, Any]:
    value = asdict(finding)
    value["class"] = value.pop("cause").value
    value["severity"] = finding.severity.value
    return {
        **value,
        "title": finding.title,
        "fix": finding.fix,
        "cost": money(finding.tokens_lost, price_per_million),
    }
