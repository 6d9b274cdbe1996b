"""How many tokens fit in so many blocks: the inverse of counting them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.pool import FULL

from agentkv.connectors.layout import Group, Layout

WINDOW = Group(group_id=1, per_block=1, per_chunk=1, window=3)
COARSE = Group(group_id=2, per_block=4, per_chunk=8)
GROUPS = [(FULL,), (FULL, WINDOW), (FULL, COARSE), (WINDOW,), (FULL, WINDOW, COARSE)]


@pytest.mark.parametrize(
    ("groups", "num_blocks", "max_tokens", "num_tokens"),
    [
        ((FULL,), 3, 1000, 48),
        ((FULL,), 3, 40, 40),
        ((FULL,), 0, 1000, 0),
        ((FULL,), 3, 0, 0),
        ((FULL, WINDOW), 7, 1000, 4 * 16),
        ((FULL, WINDOW), 2, 1000, 16),
        ((FULL, WINDOW), 1, 1000, 0),
        ((FULL, COARSE), 5, 1000, 4 * 16),
        ((WINDOW,), 3, 1600, 1600),
    ],
)
def test_so_many_tokens_fit(
    groups: tuple[Group, ...], num_blocks: int, max_tokens: int, num_tokens: int
) -> None:
    assert Layout(groups, 16).tokens_in(num_blocks, max_tokens) == num_tokens


@given(
    groups=st.sampled_from(GROUPS), num_blocks=st.integers(0, 60), max_tokens=st.integers(0, 900)
)
def test_what_fits_takes_no_more_blocks_and_a_block_more_would(
    groups: tuple[Group, ...], num_blocks: int, max_tokens: int
) -> None:
    layout = Layout(groups, 16)
    num_tokens = layout.tokens_in(num_blocks, max_tokens)
    assert 0 <= num_tokens <= max_tokens
    assert layout.blocks(num_tokens) <= num_blocks
    if num_tokens < max_tokens:
        assert num_tokens % 16 == 0 and layout.blocks(num_tokens + 1) > num_blocks


@given(groups=st.sampled_from(GROUPS), contexts=st.lists(st.integers(0, 900)))
def test_all_contexts_take_what_each_takes(groups: tuple[Group, ...], contexts: list[int]) -> None:
    layout = Layout(groups, 16)
    assert layout.blocks_of_all(np.array(contexts, np.int64)) == sum(map(layout.blocks, contexts))
