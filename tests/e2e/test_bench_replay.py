"""`agentkv bench replay` on real servers: every metric is there, and native offloading is right.

Small enough for a minute: three servers of a tiny model, four short sessions.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from agentkv.bench.replay_counters import RESUME_SOURCES
from agentkv.bench.replay_stats import METRICS
from agentkv.demo.prefetches import OUTCOMES

from .server import environment

COMMAND = (sys.executable, "-c", "from agentkv.cli.main import main; main()", "bench", "replay")
SIZES = ("--agents", "4", "--sessions", "4", "--seeds", "1", "--max-context", "2000")
REGIME = (
    "--oversubscription",
    "2.5",
    "--dram",
    "4",
    "--max-wait",
    "0.2",
    "--no-calibrate",
    "--ramp",
    "1",
)

MEASURED = ("steps", "server_cpu_s", "others_cpu_share", "x", "live_tokens")


@pytest.fixture(scope="module")
def found(engine_lock: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("replay") / "r.json"
    options = ("--systems", "stock,native,agentkv", "--json", str(file))
    done = subprocess.run(
        [*COMMAND, *SIZES, *REGIME, *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    value: dict[str, Any] = json.loads(file.read_text())
    return value


def row(found: dict[str, Any], system: str) -> dict[str, Any]:
    (only,) = [each for each in found["rows"] if each["system"] == system]
    return only


def test_every_system_has_every_metric(found: dict[str, Any]) -> None:
    ours = {f"prefetch_{outcome}" for outcome in OUTCOMES}
    ours |= {f"resume_{source}_tokens" for source in RESUME_SOURCES}
    for each in found["rows"]:
        measured = {name for name, value in each.items() if value is not None}
        assert {*METRICS, *MEASURED} <= measured
        assert (ours <= measured) == (each["system"] == "agentkv")
        assert each["resumes"] == sum(map(len, each["resume_ttft_s"].values())) > 10
        assert 0 < each["resume_ttft_p50_s"] <= each["resume_ttft_p95_s"]
    assert found["provenance"]["links"]["load_bytes_per_s"] > 1e8


def test_native_offloading_loads_from_dram_and_answers_as_stock_does(
    found: dict[str, Any],
) -> None:
    stock, native = row(found, "stock"), row(found, "native")
    assert stock["external_hit_tokens"] == 0 < native["external_hit_tokens"]
    assert native["recomputed_tokens"] < stock["recomputed_tokens"]
    assert (native["compared_with"], native["token_mismatches"]) == ("stock", 0)


def test_ours_answers_as_stock_does_and_counts_where_tokens_came_from(
    found: dict[str, Any],
) -> None:
    stock, ours = row(found, "stock"), row(found, "agentkv")
    assert ours["token_mismatches"] == 0 == ours["faults"]
    assert ours["recomputed_tokens"] < stock["recomputed_tokens"]
    assert ours["resume_gpu_tokens"] > 0
