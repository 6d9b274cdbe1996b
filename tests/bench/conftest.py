"""What the tests of the bench share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def without_lmcache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client brings numba into the process, which vLLM's CPU build cannot stand afterwards."""
    monkeypatch.setitem(sys.modules, "lmcache", None)
