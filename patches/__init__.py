"""agentkv.patches: how agentkv gets into a stock vLLM.

What: `register`, the `vllm.general_plugins` entry point, and three small patches, one per file.
Why: vLLM has official hooks for most of what agentkv does, but none for a command line flag of its
own, nor for settling a connector's settings once, before they go to the other processes.
Where: vLLM calls `register` in every process, agentkv used or not. So it may be called again, it
changes nothing for others, and where vLLM differs from what we know it steps back in silence. Only
a user who selects agentkv is told, by UnsupportedVllmError at the start.
"""

from __future__ import annotations

import importlib
import logging

from .problems import note_problem

# Order matters: `engine_config` is what tells the user about problems of the others.
PATCHES = ("connector_name", "engine_config", "cli_flags")

logger = logging.getLogger("vllm.agentkv.patches")


def register() -> None:
    """Apply the patches that fit this vLLM. Idempotent; never raises."""
    for name in PATCHES:
        try:
            problem = importlib.import_module(f"{__name__}.{name}").apply()
        except Exception as error:  # Raising here would stop a vLLM that does not use agentkv.
            problem = f"{name} failed ({type(error).__name__}: {error})"
        if problem is not None:
            note_problem(problem)
            logger.debug("agentkv: not patched: %s", problem)
