"""Checks that names of another package are as we know them, before anything relies on them.

What: a symbol is written as `module:Attribute.path`, with the parameters we pass to it.
Why: agentkv uses parts of vLLM that carry no promise of stability. A difference must be found at
the start and named, not met later as a strange failure.
Where: `agentkv.patches` checks what it wraps, `agentkv.connectors` what it calls. Names no engine.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """One name we rely on.

    `parameters` are those we pass to it; `mentions` are names its code must use, which is how the
    attributes that an `__init__` sets can be checked without an instance.
    """

    path: str
    parameters: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()

    def load(self) -> object:
        """Import and return the object. Raises ImportError or AttributeError."""
        module_name, _, attributes = self.path.partition(":")
        found: object = importlib.import_module(module_name)
        for name in attributes.split(".") if attributes else ():
            found = getattr(found, name)
        return found


def find_problem(symbol: Symbol) -> str | None:
    """Say in a few words how the installed symbol differs, or None when it fits. Never raises."""
    try:
        found = symbol.load()
    except AttributeError:
        return f"{symbol.path} does not exist"
    except Exception as error:
        return f"{symbol.path} cannot be imported ({type(error).__name__}: {error})"
    return _lost_parameters(symbol, found) or _lost_mentions(symbol, found)


def find_problems(symbols: Iterable[Symbol]) -> list[str]:
    """The problems of all symbols, in order."""
    return [problem for symbol in symbols if (problem := find_problem(symbol))]


def _lost_parameters(symbol: Symbol, found: object) -> str | None:
    if not symbol.parameters:
        return None
    if not callable(found):
        return f"{symbol.path} is not a function"
    try:
        accepted = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return f"{symbol.path} has no readable signature"
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return None
    lost = [name for name in symbol.parameters if name not in accepted]
    return f"{symbol.path} no longer takes {', '.join(lost)}" if lost else None


def _lost_mentions(symbol: Symbol, found: object) -> str | None:
    names = getattr(getattr(found, "__code__", None), "co_names", ())
    lost = [name for name in symbol.mentions if name not in names]
    return f"{symbol.path} no longer uses {', '.join(lost)}" if lost else None
