"""Every planted fault is found, named by its class, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.doctor.causes import FIXES, TITLES, Cause
from tests.doctor.builders import causes, examine
from tests.doctor.faults import FAULTS
from tests.doctor.planting import Fault


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("fault", "cause"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_found_and_named(
    fault: Fault, cause: str, seed: int, tmp_path: Path
) -> None:
    diagnosis = examine(tmp_path, fault(seed))
    assert causes(diagnosis) == {cause}
    assert not diagnosis.skipped


def test_every_class_but_the_templates_own_is_planted() -> None:
    planted = {cause for _, cause in FAULTS.values()}
    assert planted == {cause.value for cause in Cause} - {"template_rewrites"}
    assert set(TITLES) == set(FIXES) == set(Cause)
