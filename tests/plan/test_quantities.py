"""Numbers that are one, or spread."""

from __future__ import annotations

import pytest

from agentkv.errors import ConfigError
from agentkv.plan.quantities import constant, parse_bytes, parse_quantity, weighted


def test_a_number_is_itself() -> None:
    found = parse_quantity("--context", "32768", least=1)

    assert found.is_constant
    assert (found.mean, found.most, found.deviation) == (32_768, 32_768, 0)


def test_quantiles_come_back() -> None:
    found = parse_quantity("--wait", "0:0.1,0.5:3,0.9:60,1:300", least=0)

    assert found.quantile(0.5) == pytest.approx(3, rel=0.01)
    assert found.quantile(0.9) == pytest.approx(60, rel=0.01)
    assert found.share_above(60) == pytest.approx(0.1, abs=0.002)
    assert found.most <= 300
    assert not found.is_constant


def test_nothing_is_made_up_beyond_the_quantiles_that_were_given() -> None:
    found = parse_quantity("--wait", "0.5:3,0.9:60", least=0)

    assert (found.values.min(), found.most) == (pytest.approx(3), pytest.approx(60))


def test_shares_of_a_tail() -> None:
    found = weighted([1.0, 10.0, 100.0], [8, 1, 1])

    assert found.share_above(1) == pytest.approx(0.2)
    assert found.share_above(100) == 0
    assert found.sum_share_above(10) == pytest.approx(100 / 118)
    assert found.mean_above(1) == pytest.approx(55)
    assert constant(0).sum_share_above(0) == 0
    assert constant(5).mean_above(5) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", "one number, or quantiles"),
        ("", "one number, or quantiles"),
        ("nan", "out of range"),
        ("0", "at least 1"),
        ("-5", "at least 1"),
        ("0.5:", "one number, or quantiles"),
        ("0.5:8,0.5:9", "go up from 0 to 1"),
        ("50:8,90:9", "go up from 0 to 1"),
        ("0.5:9,0.9:8", "cannot be less"),
    ],
)
def test_wrong_ones_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        parse_quantity("--context", text, least=1)
    assert str(raised.value).startswith(f"--context {text}")


@pytest.mark.parametrize("text", ["auto", "80", "lots", "-80GB"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--hbm"):
        parse_bytes("--hbm", text)
    assert parse_bytes("--hbm", "80GB") == 80e9
