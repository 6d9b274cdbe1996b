"""`agentkv bench overhead`: throughput and gaps between tokens with agentkv over those without.

What: reads the options, runs the bench, prints the medians and ratios, writes the JSON file.
Where: registered by `cli.bench`; everything else is in `agentkv.bench.overhead_run`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv.cli.bench_replay import check_parent, needs_extra, stop_on_sigterm
from agentkv.errors import AgentKVError, ConfigError

if TYPE_CHECKING:
    from agentkv.bench.overhead_run import OverheadSettings, Sample
    from agentkv.bench.replay_models import BenchModel

FAILURE_EXIT_CODE = 3
OURS, STOCK, NATIVE = "agentkv", "stock", "native"

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]
ModelOption = Annotated[str, typer.Option(help="tiny or bench; random weights.", metavar="NAME")]
RunsOption = Annotated[int, typer.Option(min=1, help="Runs of each server.")]
PromptsOption = Annotated[int, typer.Option(min=1, help="Prompts of a run.")]
RunningOption = Annotated[int, typer.Option(min=1, help="Prompts at a time.")]


def overhead(
    model: ModelOption = "bench",
    runs: RunsOption = 10,
    prompts: PromptsOption = 32,
    max_running: RunningOption = 8,
    json_path: JsonOption = None,
) -> None:
    """Measure what agentkv costs where it cannot help: no prompt returns, nothing is short."""
    needs_extra("overhead")
    from rich.console import Console

    from agentkv.bench.overhead_run import OverheadSettings, run_overhead
    from agentkv.bench.replay_models import MODELS, open_model

    if model not in MODELS:
        raise ConfigError(f"--model {model}: unknown; choose from {', '.join(MODELS)}")
    check_parent("--json", json_path)
    stop_on_sigterm()
    settings = OverheadSettings(num_runs=runs, num_prompts=prompts, num_running=max_running)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="agentkv-bench-") as name:
        opened = open_model(model, Path(name))
        try:
            with console.status("starting servers") as status:
                samples = run_overhead(settings, opened, Path(name), status.update)
        except AgentKVError as error:
            print(f"agentkv: {error}", file=sys.stderr)
            raise typer.Exit(FAILURE_EXIT_CODE) from None
    for line in _lines(samples):
        console.print(line, markup=False, highlight=False)
    if json_path is not None:
        _write(json_path, samples, settings, opened)
        console.print(f"Wrote {json_path}.", markup=False)


def _lines(samples: Sequence[Sample]) -> Iterator[str]:
    from agentkv.bench.overhead_run import ratios
    from agentkv.bench.replay_stats import estimate

    for system in (STOCK, NATIVE, OURS):
        mine = [sample for sample in samples if sample.system == system]
        rate = estimate([sample.tokens_per_s for sample in mine])
        gap = estimate([sample.itl_p99_s for sample in mine])
        if rate is not None and gap is not None:
            yield (
                f"{system:>8}: {rate.median:8.1f} tokens/s, ITL p99 {1e3 * gap.median:6.1f} ms,"
                f" medians of {rate.seeds} runs"
            )
    for base in (STOCK, NATIVE):
        found = ratios(samples, OURS, base)
        for name, label in (("tokens_per_s", "throughput"), ("itl_p99_s", "ITL p99")):
            value = found[name]
            if value is not None:
                spread = "" if value.low is None else f" ({value.low:.3f}-{value.high:.3f})"
                yield f"agentkv over {base}, {label}: {value.median:.3f}{spread}"


def _write(
    path: Path, samples: Sequence[Sample], settings: OverheadSettings, model: BenchModel
) -> None:
    from agentkv import __version__
    from agentkv.bench.overhead_run import ratios
    from agentkv.bench.report import write_json
    from agentkv.demo.run import vllm_version

    value: dict[str, Any] = {
        "samples": [asdict(sample) for sample in samples],
        "ratios": {
            f"{OURS}/{base}": {
                name: None if found is None else asdict(found)
                for name, found in ratios(samples, OURS, base).items()
            }
            for base in (STOCK, NATIVE)
        },
        "provenance": {
            "versions": {"agentkv": __version__, "vllm": vllm_version()},
            "num_cores": os.cpu_count(),
            "model": dict(model.facts),
            "settings": asdict(settings),
            "command": sys.argv[1:],
        },
    }
    write_json(path, value)
