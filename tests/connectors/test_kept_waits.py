"""What was learned of waits outlives the engine, if the user wants it to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kit import Agent, Rig

RigFactory = Callable[..., Rig]
TOOL = {"tool": "deploy", "command": "deploy --to production"}


def _waits(rig: Rig, num_turns: int = 6) -> None:
    agent = Agent(rig, "agent", 1, 3)
    for _ in range(num_turns):
        agent.turn(tag=TOOL)
        rig.clock.advance(300.0)


def _median_s(rig: Rig) -> float:
    return float(rig.controller._deps.predictor.estimate(TOOL["tool"], TOOL["command"]).p50_s)


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_engine_knows_the_waits_of_the_one_before(
    make_rig: RigFactory, tmp_path: Path, is_kept: bool
) -> None:
    extra = {"predict": {"state_path": str(tmp_path / "waits.json")}} if is_kept else {}
    first = make_rig(extra=extra)
    unknown_s = _median_s(first)
    _waits(first)
    known_s = _median_s(first)
    assert known_s > 2 * unknown_s
    first.controller.close()
    second = make_rig(extra=extra)
    assert _median_s(second) == pytest.approx(known_s if is_kept else unknown_s, rel=0.05)


def test_a_damaged_file_stops_nothing(make_rig: RigFactory, tmp_path: Path) -> None:
    path = tmp_path / "waits.json"
    path.write_text('{"levels": [')
    rig = make_rig(extra={"predict": {"state_path": str(path)}})
    _waits(rig)
    rig.controller.close()
    again = make_rig(extra={"predict": {"state_path": str(path)}})
    assert again.controller._deps.predictor.num_observed >= 5
