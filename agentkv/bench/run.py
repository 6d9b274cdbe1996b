"""One run: each tier and block size in turn, each against its peers.

READ FIRST in this package. Follow a contest: `dram`, `ssd` or `redis_tier` make it, `rounds` runs
it, `rates` sums it up, `report` shows it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from agentkv import __version__
from agentkv.bench.dram import dram_contest
from agentkv.bench.fio import fio_program
from agentkv.bench.rates import Rate
from agentkv.bench.redis_tier import redis_contest
from agentkv.bench.rounds import WAYS, Contest, run_rounds
from agentkv.bench.settings import BenchSettings
from agentkv.bench.ssd import check_room, ssd_contest
from agentkv.bench.vllm_parts import why_no_vllm
from agentkv.tiers.redis.private_server import NOT_INSTALLED, private_redis, redis_program

PEERS = {"dram": ("memcpy",), "ssd": ("fio", "vllm_fs"), "redis": ("raw", "lmcache")}
NOT_CHOSEN = "not among --tiers"


@dataclass(frozen=True, slots=True)
class SizeResult:
    """Of one block size: the rates by mover and way, and why a peer has none."""

    block_bytes: int
    num_bytes: int
    rates: Mapping[str, Mapping[str, Rate]]
    facts: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]


@dataclass(slots=True)
class TierResult:
    """Of one tier. `reason` says why there are no sizes."""

    tier: str
    sizes: list[SizeResult] = field(default_factory=list)
    reason: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


OnStep = Callable[[str], None]


def num_steps(settings: BenchSettings) -> int:
    """How often `on_step` will be called, if no peer is missing."""
    num_movers = sum(1 + len(PEERS[tier]) for tier in settings.tiers)
    rounds = settings.num_rounds + 1
    return num_movers * len(WAYS) * rounds * len(settings.block_sizes_bytes)


def run_bench(settings: BenchSettings, on_step: OnStep) -> list[TierResult]:
    """Blocks for some minutes; a result for every tier, also for one that is not measured.

    Raises ConfigError for what the user must mend, AgentKVError if a tier fails.
    """
    measure = {"dram": _dram, "ssd": _ssd, "redis": _redis}
    return [
        measure[tier](settings, on_step)
        if tier in settings.tiers
        else TierResult(tier, reason=NOT_CHOSEN)
        for tier in PEERS
    ]


def _dram(settings: BenchSettings, on_step: OnStep) -> TierResult:
    if (reason := why_no_vllm()) is not None:
        return TierResult("dram", reason=reason)
    result = TierResult("dram")
    for block_bytes in settings.block_sizes_bytes:
        contest = dram_contest(settings, block_bytes)
        result.sizes.append(_measure("dram", contest, settings, block_bytes, on_step))
    return result


def _ssd(settings: BenchSettings, on_step: OnStep) -> TierResult:
    with _working_folder(settings.path) as folder:
        check_room(folder, settings.size_bytes)
        result = TierResult("ssd", facts=_file_system(folder))
        for block_bytes in settings.block_sizes_bytes:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                contest = ssd_contest(settings, block_bytes, Path(own))
                result.sizes.append(_measure("ssd", contest, settings, block_bytes, on_step))
    return result


def _redis(settings: BenchSettings, on_step: OnStep) -> TierResult:
    program = redis_program()
    if settings.redis_url is None and program is None:
        return TierResult("redis", reason=NOT_INSTALLED)
    with contextlib.ExitStack() as stack:
        url, password = settings.redis_url, os.environ.get(settings.password_env)
        if url is None and program is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentkv-bench-"))
            url, password = stack.enter_context(private_redis(program, Path(folder))), None
        assert url is not None
        result = TierResult("redis", facts={"server": settings.redis_url or "a private one"})
        for block_bytes in settings.block_sizes_bytes:
            contest = redis_contest(settings, block_bytes, url, password)
            result.sizes.append(_measure("redis", contest, settings, block_bytes, on_step))
    return result


def _measure(
    tier: str, contest: Contest, settings: BenchSettings, block_bytes: int, on_step: OnStep
) -> SizeResult:
    """Runs a contest to its end and closes it."""
    num_bytes = settings.num_blocks(block_bytes) * block_bytes
    label = f"{tier} {block_bytes >> 10} KiB"
    try:
        times = run_rounds(
            contest,
            num_rounds=settings.num_rounds,
            seed=f"{settings.seed}/{tier}/{block_bytes}",
            on_step=lambda what: on_step(f"{label}: {what}"),
        )
        movers = [contest.ours, *contest.peers]
        return SizeResult(
            block_bytes=block_bytes,
            num_bytes=num_bytes,
            rates={
                mover.name: {way: Rate.of(num_bytes, times[mover.name, way]) for way in WAYS}
                for mover in movers
            },
            facts={mover.name: mover.facts() for mover in movers},
            missing=contest.missing,
        )
    finally:
        contest.close()


@contextmanager
def _working_folder(path: Path | None) -> Iterator[Path]:
    """A directory of our own below the one named; removed with all that is in it."""
    parent = Path.cwd() if path is None else path
    with tempfile.TemporaryDirectory(prefix=".agentkv-bench-", dir=parent) as folder:
        yield Path(folder)


def _file_system(folder: Path) -> dict[str, Any]:
    """Of what kind it is, and on which device."""
    mounts = [
        part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)
    ]
    if not mounts:
        return {"file_system": None, "device": None}
    nearest = max(mounts, key=lambda part: len(part.mountpoint))
    return {"file_system": nearest.fstype, "device": nearest.device}


def provenance(settings: BenchSettings) -> dict[str, Any]:
    """What it takes to repeat a run; nothing secret."""
    names = {"agentkv": "vllm-agentkv", "vllm": "vllm", "numpy": "numpy", "redis-py": "redis"}
    versions = {name: _version(package) for name, package in names.items()}
    versions |= {"agentkv": __version__, "python": platform.python_version()}
    versions |= {"fio": _says(fio_program()), "redis-server": _says(redis_program())}
    return {
        "versions": {**versions, "platform": platform.platform()},
        "num_cores": os.cpu_count(),
        "settings": {**asdict(settings), "path": str(settings.path) if settings.path else None},
        "command": sys.argv[1:],
    }


def _says(program: str | None) -> str | None:
    """What a program answers to --version; None if it is not installed."""
    if program is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _version(package: str) -> str | None:
    for distribution in metadata.packages_distributions().get(package, [package]):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None
