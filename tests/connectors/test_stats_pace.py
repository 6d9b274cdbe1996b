"""When the numbers go to the API process: not with the step that makes a first token."""

from collections.abc import Callable

from kit import Rig, blocks, prompt

from agentkv.connectors.metrics import StatsPace


def test_a_turn_that_runs_keeps_them_back_until_it_ends() -> None:
    pace = StatsPace()
    pace.note_arrived("a")
    assert not pace.is_due(0.0)
    assert not pace.is_due(0.5)
    pace.note_finished("a")
    assert pace.is_due(0.6)


def test_the_end_of_another_turn_takes_all_along_once() -> None:
    pace = StatsPace()
    pace.note_arrived("a")
    pace.note_arrived("b")
    pace.note_finished("a")
    assert pace.is_due(0.1)
    assert not pace.is_due(0.2)


def test_a_long_answer_keeps_them_back_for_a_second_at_most() -> None:
    pace = StatsPace()
    pace.note_arrived("a")
    due = [tenth for tenth in range(35) if pace.is_due(tenth / 10)]
    assert due == [10, 21, 32]


def test_nothing_is_kept_back_while_nothing_runs() -> None:
    pace = StatsPace()
    assert pace.is_due(0.0) and pace.is_due(0.1)
    pace.note_arrived("a")
    assert not pace.is_due(0.2)


def test_the_engine_keeps_its_counters_until_the_turn_ends(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.add("r", prompt(1, blocks(3)), max_tokens=5)
    rig.step(3)
    assert rig.results["r"].request.num_output_tokens > 0
    assert rig.counter("agentkv:prefix_tokens") == 0
    rig.settle()
    assert rig.counter("agentkv:prefix_tokens") == blocks(3)
