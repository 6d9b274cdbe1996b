"""One way in which a prompt does not begin with the one before."""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.doctor.causes import Cause


@dataclass(frozen=True, slots=True)
class Difference:
    """`at_char`: letters of the former prompt that stand before it (see `Request.num_chars`)."""

    cause: Cause
    where: str
    at_char: int
    evidence: str
