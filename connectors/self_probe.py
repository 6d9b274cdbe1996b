"""Says as JSON what vLLM and torch are installed and whether agentkv fits them.

What: `python -m agentkv.connectors.self_probe PREFIX` prints one line that begins with PREFIX: for
each question its answer, or under its name and `_error` why there is none. Why: `agentkv doctor`
asks in a process of its own, and knows no engine. Where: starts none; each import may fail, and
that is an answer too.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

Answers = dict[str, str | None]


def ask() -> Answers:
    """All answers. Raises nothing."""
    found: Answers = {}
    for name in ("vllm", "torch", "torchvision"):
        _note(found, name, lambda name=name: str(importlib.import_module(name).__version__))  # type: ignore[misc]
    if "vllm" in found:
        _note(found, "probe", _check_parts)
        _note(found, "patches", _check_patches)
        _note(found, "device", _device)
    return found


def _note(found: Answers, name: str, call: Callable[[], str | None]) -> None:
    try:
        found[name] = call()
    except BaseException as error:  # Builds that do not belong together may even end the process.
        found[f"{name}_error"] = f"{type(error).__name__}: {error}"


def _check_parts() -> None:
    from .probe import check_vllm

    check_vllm()


def _check_patches() -> None:
    patches = importlib.import_module("agentkv.patches")
    patches.register()
    patches.problems.raise_if_any()


def _device() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


if __name__ == "__main__":
    print(sys.argv[1] + json.dumps(ask()))
