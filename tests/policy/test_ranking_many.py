"""Thousands at once are ranked as each by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policy import Action, Decision
from agentkv.policy.ranking import Candidate, drop_keys, give_up_keys, is_ranked
from agentkv.policy.ranking_many import FIELDS, are_ranked, drop_column, give_up_columns, row_of

NOW_S = 100.0
MOMENTS = st.floats(0, 120)
VALUES = st.one_of(st.none(), st.just(0.0), st.floats(1e-9, 1e6))


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    decision = Decision(
        draw(st.sampled_from(Action)),
        "",
        keep_value=draw(VALUES),
        keep_value_by_age=draw(VALUES),
        fading=draw(st.floats(0, 2)),
        copy_factor=draw(st.floats(0.1, 10)),
    )
    return Candidate(
        decision=decision,
        started_s=draw(MOMENTS),
        decided_s=draw(MOMENTS),
        returns_at_s=draw(st.floats(0, 1000)),
        is_tool_done=draw(st.booleans()),
    )


@given(some=st.lists(candidates(), max_size=12), is_trusted=st.booleans())
def test_columns_are_the_keys(some: list[Candidate], is_trusted: bool) -> None:
    rows = np.array([row_of(each) for each in some], np.dtype(FIELDS))
    assert are_ranked(rows) == is_ranked(some)
    keys = give_up_keys(some, NOW_S, is_prediction_trusted=is_trusted)
    columns = give_up_columns(rows, NOW_S, is_prediction_trusted=is_trusted)
    for i, key in enumerate(keys):
        assert [column[i] for column in columns] == pytest.approx(list(key), rel=1e-12)
    assert list(drop_column(rows, NOW_S)) == pytest.approx(drop_keys(some, NOW_S), rel=1e-12)
