"""Reads a server's /metrics: the sums of what is shown, over all engines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = Mapping[str, list[tuple[dict[str, str], float]]]
"""By name: the labels and the value of each series."""


def parse(text: str) -> Samples:
    """Lines that are no samples are passed over."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the series that have these labels; 0 where there is none."""
    return sum(value for has, value in samples.get(name, ()) if labels.items() <= has.items())


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """The sums by the values of one label."""
    sums: dict[str, float] = {}
    for has, value in samples.get(name, ()):
        sums[has.get(label, "")] = sums.get(has.get(label, ""), 0.0) + value
    return sums


def difference(old: Samples, new: Samples, names: Iterable[str]) -> dict[str, float]:
    """How much counters have grown, in sum; never negative (a server may have started anew)."""
    return {name: max(0.0, total(new, name) - total(old, name)) for name in names}
