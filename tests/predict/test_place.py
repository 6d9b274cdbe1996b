"""A wait is filed alike, whether its command or a trace tells of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentkv.predict.contexts import chain
from agentkv.predict.place import Place, place_of, span_s, traced_place


def test_a_command_and_its_trace_have_the_same_place_but_for_the_hash() -> None:
    told = place_of("Bash", "cd /repo && python -m pytest -x")
    read = traced_place("Bash", "pytest/test", "python -m pytest", "abc")
    assert told._replace(signature="") == read._replace(signature="")
    assert told.signature == place_of("execute_bash", "cd /repo && python -m pytest -x").signature
    assert told.signature != place_of("Bash", "cd /repo && python -m pytest").signature


def test_other_tools_are_known_by_what_they_work_on() -> None:
    one, other = place_of("Read", "a.py"), place_of("Read", "b.py")
    assert (one.tool, one.cls, one.head) == ("read", "", "")
    assert one.signature != other.signature


@pytest.mark.parametrize("tool", [None, "", "   ", 5, ["Bash"]])
def test_without_a_tool_nothing_is_known(tool: Any) -> None:
    assert place_of(tool, "make") == Place()


def test_the_chain_runs_from_all_waits_to_the_command() -> None:
    keys = chain(place_of("Bash", "git log -3"), "first_time")
    kinds = ["all", "tool", "tool", "class", "word", "head", "command"]
    assert [key.kind for key in keys] == kinds
    assert [key.kind for key in chain(Place("human"), "first_time")] == ["human", "tool"]
    assert len(chain(Place(), "")) == 2


@pytest.mark.parametrize("bad", [None, "5", math.nan, math.inf, -0.1, True, [1]])
def test_what_is_no_span_of_time_is_none(bad: Any) -> None:
    assert span_s(bad, 10.0) is None


def test_a_span_is_at_most_the_longest() -> None:
    assert (span_s(3, 10.0), span_s(1e300, 10.0), span_s(10**400, 10.0)) == (3.0, 10.0, 10.0)
