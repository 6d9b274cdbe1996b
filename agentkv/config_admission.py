"""The settings of admission by program."""

from __future__ import annotations

from agentkv.config_fields import Count, Fraction, Seconds, Section


class AdmissionConfig(Section):
    """Who may run while much is computed again."""

    enabled: bool = True
    """Let programs wait while recomputing eats the engine's time; off: a router sees to that."""

    max_recompute_share: Fraction = 0.75
    """Hold programs back once more of the time than this, for minutes, goes into recomputing."""

    max_wait_s: Seconds = 300.0
    """Who was held back for this long comes next, as fast as what waits can be computed again."""

    max_overtaken: Count = 4
    """With AgentScheduler: so many later turns go first at most, for each turn there before."""
