"""The demo with tiers below DRAM: what is asked for, and what is said of it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from agentkv.config import parse_config
from agentkv.demo.rows import PauseRow
from agentkv.demo.tiers import came_from, parse_tiers, redis_server, tier_config, tier_summary
from agentkv.errors import ConfigError


def row(**fields: Any) -> PauseRow:
    return PauseRow(
        **{
            "session": "s",
            "turn": 0,
            "tool": "bash",
            "command": None,
            "wait_s": 1.0,
            "is_wait_cut": False,
            "prompt_tokens": 100,
            "known_tokens": 90,
            "ttft_s": 0.1,
            "ttft_stock_s": 0.2,
            "reused_tokens": 64,
            "reused_stock_tokens": 0,
            "recomputed_tokens": 0,
            "recomputed_stock_tokens": 64,
            "is_same_answer": True,
            **fields,
        }
    )


def test_tiers_are_read_once_each_and_dram_must_be_among_them() -> None:
    assert parse_tiers("dram, ssd,redis,ssd") == ("dram", "ssd", "redis")
    with pytest.raises(ConfigError, match="--tiers tape: unknown; choose from dram, ssd, redis"):
        parse_tiers("dram,tape")
    with pytest.raises(ConfigError, match="dram must be among them"):
        parse_tiers("ssd")


def test_the_settings_are_those_of_the_plugin(tmp_path: Path) -> None:
    assert tier_config(("dram",), tmp_path, None) == {}
    config = parse_config(tier_config(("dram", "ssd"), tmp_path, "redis://127.0.0.1:1"))
    assert config.ssd.path == tmp_path / "ssd" and config.redis.url == "redis://127.0.0.1:1"
    assert config.park_after_s == 1.0


def test_a_redis_runs_as_long_as_the_demo(tmp_path: Path) -> None:
    with redis_server(("dram",), tmp_path) as url:
        assert url is None
    with redis_server(("dram", "redis"), tmp_path) as url:
        assert url is not None
        client = redis.Redis.from_url(url)
        assert client.ping()
    with pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_resume_came_from_the_slowest_tier_that_had_some_of_it() -> None:
    assert came_from(row(tier="gpu", promoted_tokens={"ssd": 64})) == "ssd"
    assert came_from(row(tier="ssd", promoted_tokens={"ssd": 64, "redis": 32})) == "redis"
    assert came_from(row(tier="mixed", promoted_tokens={"ssd": 0})) == "dram"
    assert came_from(row(tier=None)) == "not seen"


def test_the_summary_counts_what_went_down_and_what_came_up() -> None:
    rows = [
        row(tier="ssd", promoted_tokens={"ssd": 64}, demoted_blocks={"ssd": 3, "redis": 1}),
        row(turn=1, tier="gpu", ttft_s=0.3, demoted_blocks={"redis": 2}),
        row(turn=2, tier="gpu", ttft_s=0.5),
    ]
    summary = tier_summary(rows)
    assert summary["parked"] == {"ssd": 1, "redis": 2}
    assert summary["resumed_from"] == {"gpu": 2, "dram": 0, "ssd": 1, "redis": 0, "none": 0}
    assert summary["tokens_brought_up"] == {"ssd": 64, "redis": 0}
    assert summary["ttft_p50_s"] == {"gpu": 0.4, "ssd": 0.1}
