"""fio as the measure of a disk: what the device gives to a program that does nothing else.

What: jobs that each have a part of one file: written in order, as the tier fills its segments, and
read in random order, each block once. Why one file that stays: the tier too writes into space that
it has, and a file's first writing is slower. Why in large pages, which fio does not take by itself:
a device moves a block in one of them up to three times as fast as in hundreds of small ones, and
the tier does use them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkv.bench.rounds import PeerError

_TIMEOUT_S = 600.0
_LARGE_PAGE_BYTES = 2 << 20
_TUNABLES = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb=1"  # Has malloc ask for them (glibc 2.35 and newer).


def fio_program() -> str | None:
    """None if it is not installed."""
    return shutil.which("fio")


class Fio:
    """See `Mover`. Keeps its own clock, so its start costs nothing."""

    name = "fio"

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        num_bytes: int,
        block_bytes: int,
        num_jobs: int,
        is_direct: bool,
        seed: int,
    ) -> None:
        folder.mkdir()
        blocks_per_job = num_bytes // block_bytes // num_jobs
        self._num_bytes = num_bytes
        self._is_direct = is_direct
        job_bytes = blocks_per_job * block_bytes
        options = {
            "name": "agentkv",
            "filename": folder / "data",
            "bs": block_bytes,
            "size": job_bytes,
            "offset_increment": job_bytes,
            "numjobs": num_jobs,
            "ioengine": "psync",
            "direct": int(is_direct),
            "invalidate": 1,
            "iomem_align": _LARGE_PAGE_BYTES,
            "randseed": seed + 1,
            "output-format": "json",
        }
        self._command = [program, *(f"--{name}={value}" for name, value in options.items())]
        self._command += ["--thread", "--group_reporting"]

    def store(self) -> float:
        return self._run("write")

    def load(self) -> float:
        return self._run("randread")

    def facts(self) -> Mapping[str, Any]:
        return {
            "direct_io": self._is_direct,
            "store_command": _shown(self._with("write")),
            "load_command": _shown(self._with("randread")),
        }

    def close(self) -> None:
        pass

    def _with(self, way: str) -> list[str]:
        return [*self._command, f"--rw={way}"]

    def _run(self, way: str) -> float:
        try:
            done = subprocess.run(
                self._with(way),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=_environment(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerError(f"fio cannot be run: {type(error).__name__}") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise PeerError(f"fio failed: {lines[0]}")
        return self._num_bytes / bytes_per_s(done.stdout, "write" if way == "write" else "read")


def _environment() -> dict[str, str]:
    """The caller's, with large pages."""
    tunables = filter(None, [os.environ.get(_TUNABLES), _LARGE_PAGES])
    return {**os.environ, _TUNABLES: ":".join(tunables)}


def _shown(command: list[str]) -> str:
    """As it could be typed."""
    return f"{_TUNABLES}={_LARGE_PAGES} {shlex.join(command)}"


def bytes_per_s(output: str, way: str) -> float:
    """The rate of all jobs together, from fio's JSON. Raises PeerError."""
    try:
        rate = float(json.loads(output[output.index("{") :])["jobs"][0][way]["bw_bytes"])
    except (ValueError, LookupError, TypeError):
        raise PeerError("fio's output cannot be read") from None
    if rate <= 0:
        raise PeerError("fio moved nothing")
    return rate
