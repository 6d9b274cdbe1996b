"""Finds the parts that need vLLM by their name: where it is not installed, nothing is loaded."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

NEEDS_VLLM = "vLLM is not installed"


def why_no_vllm() -> str | None:
    """None if the parts can be used; takes some seconds the first time."""
    if importlib.util.find_spec("vllm") is None:
        return NEEDS_VLLM
    try:
        copy_bench()
    except ImportError as error:  # Another vLLM, or one that does not load here.
        return f"vLLM cannot be loaded: {error}"
    return None


def copy_bench() -> Any:
    """The module; raises ImportError."""
    return importlib.import_module("agentkv.connectors.copy_bench")
