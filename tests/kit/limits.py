"""Admission that holds programs back whatever the recompute load is."""

from __future__ import annotations

from kit.rig import Rig


def limit_programs(rig: Rig, limit_tokens: int) -> None:
    """From now on only programs with so many tokens together keep going."""
    admission = rig.side.gate.admission
    admission.limit_tokens = limit_tokens
    admission._set_limit = lambda passed_s, counted_tokens: None
    admission._is_stale = True
