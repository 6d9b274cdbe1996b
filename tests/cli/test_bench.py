"""`agentkv bench store`: a small real run, its table and JSON, and what is refused before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentkv.bench.settings import BenchSettings, parse_block_sizes, parse_tiers
from agentkv.cli.main import build_app
from agentkv.errors import ConfigError

SMALL = ("--size", "1MiB", "--block-size", "64KiB", "--block-size", "128KiB", "--rounds", "2")


def call(*args: str) -> Any:
    return CliRunner().invoke(build_app(), ["bench", "store", *args], env={"COLUMNS": "80"})


def test_a_run_measures_every_tier_against_every_peer(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = call(*SMALL, "--path", str(tmp_path), "--seed", "7", "--json", str(file))
    assert done.exit_code == 0, (done.output, done.exception)
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "…" not in done.stdout
    found = json.loads(file.read_text())
    for tier, names in {
        "dram": ["ratio_to_memcpy"],
        "ssd": [f"{w}_ratio_to_{p}" for w in ("store", "load") for p in ("fio", "vllm_fs")],
        "redis": ["ratio_to_raw", "set_ratio_to_raw", "get_ratio_to_raw"],
    }.items():
        for name in names:
            assert set(found[tier][name]) == {"64KiB", "128KiB"}
            assert all(ratio > 0 for ratio in found[tier][name].values())
    for size, both in found["redis"]["ratio_to_raw"].items():
        redis = found["redis"]
        assert both == min(redis["set_ratio_to_raw"][size], redis["get_ratio_to_raw"][size])
    rates = found["ssd"]["block_sizes"]["64KiB"]["gb_per_s"]["fio"]["store"]
    assert len(rates["rounds"]) == 2 and rates["p10"] <= rates["median"] <= rates["p90"]
    assert isinstance(found["ssd"]["block_sizes"]["64KiB"]["how"]["agentkv"]["direct_io"], bool)
    assert found["ssd"]["file_system"]
    assert found["provenance"]["settings"]["seed"] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"], "files were left behind"


def test_what_is_missing_is_null_with_a_reason_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "r.json"
    done = call(*SMALL, "--tiers", "ssd,redis", "--path", str(tmp_path), "--json", str(file))
    assert done.exit_code == 0, (done.output, done.exception)
    assert "redis: not measured: redis-server is not installed" in done.stdout
    assert "ssd: fio not measured: fio is not installed" in done.stdout
    assert "dram: not measured: not among --tiers" in done.stdout
    found = json.loads(file.read_text())
    assert found["redis"]["ratio_to_raw"] is None
    assert found["redis"]["reasons"]["raw"] == "redis-server is not installed"
    assert found["ssd"]["store_ratio_to_fio"] == {"64KiB": None, "128KiB": None}
    assert found["ssd"]["reasons"] == {"fio": "fio is not installed"}
    assert found["ssd"]["store_ratio_to_vllm_fs"]["64KiB"] > 0


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--redis-url", "redis://:hunter2@h"), "must not hold the password"),
        (("--tiers", "dram,nvme"), "--tiers nvme: unknown"),
        (("--tiers", ","), "none is named"),
        (("--size", "lots"), "is not a size"),
        (("--block-size", "1000"), "--block-size"),
        (("--block-size", "65KiB"), "whole pages"),
        (("--size", "1MiB", "--block-size", "1MiB"), "too small for 8 blocks"),
        (("--path", "/none/at/all"), "there is no such directory"),
        (("--json", "/none/at/all.json"), "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    args: tuple[str, ...], text: str
) -> None:
    done = call(*args)
    assert isinstance(done.exception, ConfigError) and text in str(done.exception)
    assert "hunter2" not in str(done.exception) + done.output


def test_a_server_that_is_not_there_is_status_3() -> None:
    done = call(*SMALL, "--tiers", "redis", "--redis-url", "redis://127.0.0.1:1")
    assert done.exit_code == 3
    assert done.stderr.startswith("agentkv: the Redis server cannot be used")


def test_options_are_read() -> None:
    assert parse_tiers("redis, dram") == ("dram", "redis")
    assert parse_block_sizes(["512KiB", "2MiB", "512KiB"]) == (512 << 10, 2 << 20)
    assert BenchSettings().num_blocks(512 << 10) == 512
