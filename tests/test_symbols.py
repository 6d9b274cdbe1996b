"""Symbols: each way in which another package can differ is found and named."""

import pytest

from agentkv.symbols import Symbol, find_problem, find_problems


def test_a_symbol_that_fits_has_no_problem() -> None:
    assert find_problem(Symbol("json:dumps", ("obj", "indent"))) is None
    assert find_problem(Symbol("json:JSONDecoder.decode", ("self", "s"))) is None
    assert find_problem(Symbol("json")) is None


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (Symbol("json:gone"), "json:gone does not exist"),
        (Symbol("json:dumps.gone"), "json:dumps.gone does not exist"),
        (
            Symbol("json.gone:x"),
            "json.gone:x cannot be imported (ModuleNotFoundError: No module named 'json.gone')",
        ),
        (
            Symbol("json:JSONDecoder.decode", ("s", "a", "b")),
            "json:JSONDecoder.decode no longer takes a, b",
        ),
        (Symbol("json:decoder", ("s",)), "json:decoder is not a function"),
        (
            Symbol("json:JSONDecoder.__init__", mentions=("strict", "gone")),
            "json:JSONDecoder.__init__ no longer uses gone",
        ),
    ],
)
def test_a_difference_is_named(symbol: Symbol, problem: str) -> None:
    assert find_problem(symbol) == problem


def test_a_function_that_takes_any_keyword_takes_ours() -> None:
    assert find_problem(Symbol("json:dumps", ("whatever",))) is None


def test_all_problems_are_listed_in_order() -> None:
    problems = find_problems([Symbol("json:a"), Symbol("json:dumps"), Symbol("json:b")])
    assert problems == ["json:a does not exist", "json:b does not exist"]
