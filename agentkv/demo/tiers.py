"""The demo with tiers below DRAM: what the server is told, a Redis for it, what came of each tier.

Sizes: DRAM holds a third of what it holds without them, and a pause of a second is long, so that
within a minute KV goes down to every tier and comes back from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agentkv.demo.rows import PauseRow
from agentkv.errors import ConfigError
from agentkv.tiers.redis.private_server import private_redis, redis_program

TIERS = ("dram", "ssd", "redis")
SLOW_TIERS: tuple[str, ...] = TIERS[1:]
SMALL_DRAM_BYTES = 10 << 20
PARK_AFTER_S = 1.0
RETURNS_ELSEWHERE = 0.3


def parse_tiers(text: str) -> tuple[str, ...]:
    """The tiers of `--tiers`. Raises ConfigError for an unknown one, or one that is not there."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in TIERS:
            raise ConfigError(f"--tiers {name}: unknown; choose from {', '.join(TIERS)}")
    if "dram" not in names:
        raise ConfigError("--tiers: dram must be among them, all KV passes through it")
    if "redis" in names and redis_program() is None:
        raise ConfigError(
            "--tiers redis: needs redis-server, which is not installed (Debian: apt "
            "install redis-server)"
        )
    return names


def tier_config(tiers: Sequence[str], folder: Path, redis_url: str | None) -> dict[str, Any]:
    """The connector's settings for the tiers below DRAM; {} if there are none."""
    config: dict[str, Any] = {}
    if "ssd" in tiers:
        config["ssd"] = {"path": str(folder / "ssd"), "size_bytes": "512MiB"}
    if redis_url is not None:
        config["redis"] = {"url": redis_url}
    if config:
        config |= {"park_after_s": PARK_AFTER_S, "returns_elsewhere": RETURNS_ELSEWHERE}
    return config


@contextmanager
def redis_server(tiers: Sequence[str], folder: Path) -> Iterator[str | None]:
    """The URL of a Redis of our own while the demo runs; None without a Redis tier.

    Raises AgentKVError if it does not start.
    """
    program = redis_program() if "redis" in tiers else None
    if program is None:
        yield None
        return
    with private_redis(program, folder) as url:
        yield url


def came_from(row: PauseRow) -> str:
    """Where the KV of a resume had been: the slowest tier that it came from."""
    for name in reversed(SLOW_TIERS):
        if row.promoted_tokens.get(name):
            return name
    return "dram" if row.tier == "mixed" else row.tier or "not seen"


def tier_summary(rows: Sequence[PauseRow]) -> dict[str, Any]:
    """The `tiers` object of the JSON output."""
    parked = Counter(name for row in rows for name, count in row.demoted_blocks.items() if count)
    sources = {row: came_from(row) for row in rows}
    names = ("gpu", *TIERS, "none")
    times_s = {name: [row.ttft_s for row in rows if sources[row] == name] for name in names}
    return {
        # A pause may have parts in two tiers.
        "parked": {name: parked[name] for name in SLOW_TIERS},
        "resumed_from": {name: len(times_s[name]) for name in names},
        "tokens_brought_up": {
            name: sum(row.promoted_tokens.get(name, 0) for row in rows) for name in SLOW_TIERS
        },
        "ttft_p50_s": {
            name: round(float(np.median(values)), 5) for name, values in times_s.items() if values
        },
    }
