"""What the tests of the bench share."""

import sys

import pytest
from demo.conftest import counter as counter
from demo.conftest import recorded as recorded
from demo.conftest import tokenizer as tokenizer


@pytest.fixture(autouse=True)
def without_lmcache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client brings numba into the process, which vLLM's CPU build cannot stand afterwards."""
    monkeypatch.setitem(sys.modules, "lmcache", None)
