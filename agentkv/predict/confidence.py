"""How far an estimate is more than the age of the wait: what a policy may rank by it.

What: `Gains`, what predictions promised over the age curve of all waits and what they kept, by
tool. Why: a predictor that has learned noise looks sure of itself; only its record shows. Where:
part of `hierarchical`.

The expected gain in nats (see `Distribution.gain`), times the share that was kept of earlier ones,
as 1 - exp(-2·gain): the squared correlation that carries so much information (Linfoot 1957).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

_ASSUMED_GAIN = 4.0  # nats promised before the record counts as much as what is assumed
_ASSUMED_SHARE = 0.7
_KEEP = 0.98
_MAX_TOOLS = 256
_WORST = -3.0  # nats: one surprise must not outweigh all else


class Gains:
    """Thread-free; a pair of numbers for each of at most 256 tools, those seen last."""

    def __init__(self) -> None:
        self._by_tool: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def add(self, tool: str, *, promised: float, kept: float) -> None:
        """One more wait, both in nats."""
        before_promised, before_kept = self._by_tool.get(tool, (0.0, 0.0))
        self._by_tool[tool] = (
            _KEEP * before_promised + promised,
            _KEEP * before_kept + max(kept, _WORST),
        )
        self._by_tool.move_to_end(tool)
        if len(self._by_tool) > _MAX_TOOLS:
            self._by_tool.popitem(last=False)

    def confidence(self, tool: str, gain: float) -> float:
        """In 0..1, for an estimate that promises so many nats."""
        promised, kept = self._by_tool.get(tool, (0.0, 0.0))
        share = (kept + _ASSUMED_SHARE * _ASSUMED_GAIN) / (promised + _ASSUMED_GAIN)
        return 1 - math.exp(-2 * gain * min(max(share, 0.0), 1.0))

    def dump(self) -> list[tuple[str, float, float]]:
        """Tool, and the nats promised and kept; for `load`."""
        return [(tool, *pair) for tool, pair in self._by_tool.items()]

    def load(self, rows: Sequence[tuple[str, float, float]]) -> None:
        """The last 256 of them."""
        pairs = ((tool, (max(promised, 0.0), kept)) for tool, promised, kept in rows[-_MAX_TOOLS:])
        self._by_tool = OrderedDict(pairs)
