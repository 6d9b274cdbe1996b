"""Of a healthy log nothing is said, whatever innocent clients do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.builders import examine
from tests.doctor.healthy import HEALTHY

_COMPARES_NOTHING = {"one_shots"}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_a_healthy_log_is_met_with_silence(name: str, seed: int, tmp_path: Path) -> None:
    make: Callable[[int], list[Any]] = HEALTHY[name]
    entries = make(seed)
    diagnosis = examine(tmp_path, entries)
    assert diagnosis.findings == ()
    assert diagnosis.skipped == () and diagnosis.num_requests == len(entries)
    # Silence is worth nothing where nothing was held against anything.
    assert (diagnosis.num_compared == 0) == (name in _COMPARES_NOTHING)


def test_there_are_enough_kinds_of_healthy_logs() -> None:
    assert len(HEALTHY) >= 20
