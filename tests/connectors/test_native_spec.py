"""The baseline's DRAM: what it builds on, and that cache tensors do not share their bytes.

That it stores, loads and answers right is shown by `e2e/test_bench_replay.py` on a real server.
"""

import pytest
import torch

from agentkv.connectors import native_spec
from agentkv.connectors.native_spec import SYMBOLS, NativeOffloadingSpec, _Columns
from agentkv.errors import UnsupportedVllmError
from agentkv.symbols import Symbol, find_problems


def test_this_vllm_has_what_the_spec_builds_on() -> None:
    assert find_problems(SYMBOLS) == []


def test_a_vllm_that_lacks_it_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = (Symbol("vllm.v1.kv_offload.cpu.spec:CPUOffloadingSpec.no_longer_there"),)
    monkeypatch.setattr(native_spec, "SYMBOLS", lost)
    with pytest.raises(UnsupportedVllmError, match="no_longer_there does not exist"):
        NativeOffloadingSpec(None)  # type: ignore[arg-type]


def test_each_cache_tensor_gets_columns_of_its_own() -> None:
    region = torch.zeros((3, 10), dtype=torch.int8)
    columns = _Columns(region)
    first, second = columns.take(4), columns.take(6)
    first.fill_(1)
    second.fill_(2)
    assert region.tolist() == [[1] * 4 + [2] * 6] * 3
