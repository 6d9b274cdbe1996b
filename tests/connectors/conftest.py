"""Rigs for the scheduler tests; each one is checked for leaks when its test has passed."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit import Rig, RigConfig

RigFactory = Callable[..., Rig]

# With another's router, whose choice between equals is not ours: run when one is named.
collect_ignore = [] if os.environ.get("AGENTKV_VLLM_ROUTER") else ["test_vllm_router.py"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    return report


_HAS_PASSED = pytest.StashKey[bool]()


@pytest.fixture
def make_rig(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RigFactory]:
    """Builds rigs from `RigConfig` fields. After a passed test: nothing may be left behind."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    rigs: list[Rig] = []

    def make(**fields: Any) -> Rig:
        rigs.append(Rig(RigConfig(**fields)))
        return rigs[-1]

    yield make
    try:
        if request.node.stash.get(_HAS_PASSED, False):
            for rig in rigs:
                if not rig.is_spoilt:
                    rig.clean()
    finally:
        for rig in rigs:
            rig.close()
