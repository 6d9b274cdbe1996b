"""What the replays say: tables for the screen and for Markdown, and the JSON file.

Where: after the last replay, and the JSON after each seed and regime too, so that a run that is
interrupted leaves what it had.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from agentkv import __version__
from agentkv.bench.replay_run import Findings, Prepared
from agentkv.bench.replay_settings import ReplaySettings
from agentkv.bench.replay_stats import compare, summarize
from agentkv.bench.replay_workloads import content_hash, waits_note
from agentkv.demo.run import vllm_version
from agentkv.errors import ConfigError

HEADERS = (
    "live / pool, DRAM / pool (x)",
    "system",
    "resume TTFT p50, ms",
    "p95, ms",
    "p99, ms",
    "ITL p99, ms",
    "sessions/h",
    "computed again, %",
    "wrong",
)
RATIO_HEADERS = ("x", "ours", "over", "TTFT p50", "p95", "mean", "sessions/h", "computed again")
_RATIO_METRICS = (
    "resume_ttft_p50_s",
    "resume_ttft_p95_s",
    "resume_ttft_mean_s",
    "sessions_per_hour",
    "recomputed_tokens",
)


def json_value(prepared: Prepared, findings: Findings) -> dict[str, Any]:
    """Rows, their summary and ratios, and what it takes to repeat the run."""
    return {
        "rows": findings.rows,
        "summary": summarize(findings.rows),
        "ratios": compare(findings.rows),
        "turns": findings.turns,
        "provenance": provenance(prepared, findings),
    }


def provenance(prepared: Prepared, findings: Findings) -> dict[str, Any]:
    """Versions, model, sizes, machine and command line; nothing secret."""
    calibration = findings.calibration
    return {
        "versions": {
            "agentkv": __version__,
            "vllm": vllm_version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "machine": {"num_cores": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total},
        "model": {
            "name": prepared.settings.model,
            "kv_bytes_per_token": prepared.model.kv_bytes_per_token,
            **prepared.model.facts,
        },
        "calibration": calibration.as_json() if calibration else None,
        "links": findings.links,
        "regimes": [asdict(each) if each else None for each in prepared.regimes],
        "settings": _settings(prepared.settings),
        "traces": {str(path): content_hash(path) for path in prepared.settings.traces},
        "workloads": [
            {
                "seed": seed,
                "source": workload.source,
                "sessions": len(workload.sessions),
                "turns": sum(len(session.turns) for session in workload.sessions),
                "waits": waits_note(workload),
                **_finite(workload.notes),
            }
            for seed, workload in enumerate(prepared.workloads)
        ],
        "command": sys.argv[1:],
    }


def table_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The cells under `HEADERS`: medians over seeds, with 95 % intervals where there are some."""
    for cell in summarize(rows):
        found = cell["estimates"]
        yield (
            place_label(cell),
            cell["system"],
            *(_cell(found[f"resume_ttft_p{level}_s"], 1e3) for level in (50, 95, 99)),
            _cell(found["itl_p99_s"], 1e3),
            _cell(found["sessions_per_hour"], 1.0),
            _cell(found["recomputed_share"], 100.0),
            "-" if cell["token_mismatches"] is None else str(cell["token_mismatches"]),
        )


def ratio_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The cells under `RATIO_HEADERS`: ours over a baseline."""
    for each in compare(rows):
        x = "-" if each["x"] is None else f"{each['x']:.2f}"
        cells = (_cell(each["ratios"][name], 1.0) for name in _RATIO_METRICS)
        yield (x, each["system"], each["over"], *cells)


def markdown(headers: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    """A table as Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def notes(value: Mapping[str, Any]) -> Iterator[str]:
    """What must be known to read the tables, a line each; from `json_value`."""
    about = value["provenance"]
    seeds = {row["seed"] for row in value["rows"]}
    yield (
        f"{about['settings']['num_agents']} agents, {len(seeds)} seeds; medians over seeds (95 % "
        "bootstrap interval); ratios are medians of paired seeds."
    )
    for workload in (each for each in about["workloads"] if each["seed"] in seeds):
        yield f"seed {workload['seed']}: {workload['statement']} {workload['waits']}"
    calibration = about["calibration"]
    if calibration is not None and calibration["recompute_over_reload"] is not None:
        yield (
            f"Model {about['model']['name']}: {calibration['context_tokens']:,} tokens take "
            f"{1e3 * calibration['recompute_s']:.0f} ms to compute, "
            f"{1e3 * calibration['reload_s']:.1f} ms to load from DRAM: a ratio of "
            f"{calibration['recompute_over_reload']:.0f}."
        )
    others = [row["others_cpu_share"] for row in value["rows"] if row["others_cpu_share"]]
    if others:
        yield f"Other processes took {_share(others)} % of the machine's cores meanwhile."
    loads = [row["busy_share"] for row in value["rows"] if row["system"] == "infinite"]
    if loads:
        yield f"Load: with an infinite pool a turn was under way {_share(loads)} % of the time."


def read_json(path: Path, option: str = "--from") -> dict[str, Any]:
    """What `json_value` made. Raises ConfigError for any other file, naming the option."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["rows"] and value["provenance"]["workloads"]:
            return value
        reason = "it has no rows"
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise ConfigError(f"{option} {path}: not a file of --json ({reason}); name one")


def place_label(cell: Mapping[str, Any]) -> str:
    """The regime, as `4, 1 (2.0)`."""
    if cell["oversubscription"] is None:
        return "-"
    return f"{cell['oversubscription']:g}, {cell['dram']:g} ({cell['x']:.2f})"


def _share(values: Sequence[float]) -> str:
    low, high = round(100 * min(values)), round(100 * max(values))
    return f"{low}" if low == high else f"{low}-{high}"


def _cell(value: Mapping[str, Any] | None, factor: float) -> str:
    if value is None:
        return "-"
    text = _number(value["median"] * factor)
    if value["low"] is None:
        return text
    return f"{text} ({_number(value['low'] * factor)}-{_number(value['high'] * factor)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _settings(settings: ReplaySettings) -> dict[str, Any]:
    paths = {"lock", "keep_logs"}
    value = {k: v for k, v in asdict(settings).items() if k not in paths}
    return {**value, "traces": [str(path) for path in settings.traces]}


def _finite(found: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: no cap is null."""
    return {k: None if v == float("inf") else v for k, v in found.items()}
