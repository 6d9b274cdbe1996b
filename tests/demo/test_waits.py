"""Command classes and the waits drawn from their quantiles."""

import random
import statistics

import pytest

from agentkv.demo.waits import Quantiles, command_class, command_of, shipped_waits


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest -q tests", "test"),
        ("cd /repo && python -m pytest", "test"),
        ("pip install pylint", "install"),
        ("sed -i 's/a/b/' setup.py", "edit"),
        ("cat <<EOF > run.py\nimport pytest\nEOF", "test"),
        ("grep -rn 'def main' .", "search"),
        ("cd src && git status", "git"),
        ("make -j2", "build"),
        ("python reproduce.py", "python"),
        ("sudo reboot", "other"),
    ],
)
def test_a_command_has_a_class(command: str, expected: str) -> None:
    assert command_class(command) == expected


def test_the_last_bash_block_of_an_answer_is_its_command() -> None:
    answer = "First\n```bash\nls\n```\nthen\n```bash\ngit diff\n```\n"
    assert command_of(answer) == "git diff"
    assert command_of("I am done.") is None


def test_a_quantile_is_met_at_its_share_and_rises_between() -> None:
    waits = Quantiles(shares=(0.0, 0.5, 1.0), waits_s=(0.1, 1.0, 100.0))
    assert [waits.at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.1, 1.0, 100.0])
    assert waits.at(0.75) == pytest.approx(10.0)


def test_drawn_waits_have_the_median_and_the_tail_they_were_measured_with() -> None:
    sampler = shipped_waits()
    drawn = [sampler.draw("pytest -q", str(number)) for number in range(4000)]
    assert statistics.median(drawn) == pytest.approx(1.79, rel=0.1)
    assert 0.02 < sum(wait_s > 30 for wait_s in drawn) / len(drawn) < 0.07
    assert max(drawn) <= 181.463


def test_a_wait_follows_its_key_alone() -> None:
    sampler = shipped_waits()
    random.seed(1)
    first = sampler.draw("pytest -q", "0/a/1")
    random.seed(2)
    assert sampler.draw("pytest -q", "0/a/1") == first
    assert sampler.draw("pytest -q", "0/a/2") != first
