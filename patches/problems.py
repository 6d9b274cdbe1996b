"""What does not fit the installed vLLM, kept until someone selects agentkv.

What: a list of one-line problems for the process.
Why: at the time the patches are applied nobody knows yet whether agentkv is used at all.
Where: filled by `register`, read by `engine_config`.
"""

from __future__ import annotations

from agentkv.errors import UnsupportedVllmError

_problems: list[str] = []


def note_problem(problem: str) -> None:
    """Remember a problem, once."""
    if problem not in _problems:
        _problems.append(problem)


def raise_if_any() -> None:
    """Raise UnsupportedVllmError with the problems, if there are any."""
    if _problems:
        raise UnsupportedVllmError(
            f"agentkv does not fit this vLLM: {'; '.join(_problems)}; "
            "install a vLLM version that agentkv was tested with (see its README)"
        )
