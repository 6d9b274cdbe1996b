"""`agentkv simulate`: what a policy would do to a whole node, from recorded traces.

What: reads the options, runs the sweep, prints the table, writes JSON and pictures.
Why it imports late: `agentkv --help` should not need numpy, nor this command matplotlib unless
pictures are asked for. Where: registered by `cli.main`; everything else is in `agentkv.sim`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv.errors import ConfigError

if TYPE_CHECKING:
    from agentkv.sim.run import RunResult, TierSpec
    from agentkv.sim.sweep import Plan, Prepared

LOADS = ("stretched", "recorded")
_TABLE_COLUMNS = 150

TracesArgument = Annotated[
    list[Path],
    typer.Argument(
        help="agentkv-trace-v1 or Mooncake/Dynamo (.jsonl, .jsonl.gz), kv-cache-tester (.json).",
        metavar="TRACE...",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        help="lru, oracle, a policy, one with _nopredict or _noadmission.", metavar="LIST"
    ),
]
OversubscriptionOption = Annotated[
    str, typer.Option(help="Live KV in units of the GPU pool.", metavar="LIST")
]
DramOption = Annotated[str, typer.Option(help="DRAM in units of the GPU pool.", metavar="LIST")]
ProfileOption = Annotated[
    str, typer.Option(help="70b, 8b, gb200, or a JSON file with a measured one.", metavar="NAME")
]
LoadOption = Annotated[
    str,
    typer.Option(help="stretched: waits x k, the node at 60 % of its peak; or recorded waits."),
]
TierOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tier",
        help="A tier below DRAM, as NAME:SIZE:GB_PER_S with SIZE in pools; ssd:20:6.",
        metavar="SPEC",
    ),
]
CapOption = Annotated[
    float | None, typer.Option(min=0.0, help="Cut longer waits to this many seconds.")
]
WrongOption = Annotated[
    float | None, typer.Option(min=1.0, help="Send stated waits that are off by this factor.")
]
ResumeOption = Annotated[
    float, typer.Option(min=0.0, help="A resume event comes so many seconds before each turn.")
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write a row per run to this file.", metavar="FILE")
]
PlotsOption = Annotated[
    Path | None, typer.Option(help="Write pictures to this folder.", metavar="DIR")
]


def simulate(
    traces: TracesArgument,
    policy: PolicyOption = "lru,break_even,oracle",
    oversubscription: OversubscriptionOption = "1,2,4,8",
    dram: DramOption = "0,1,4",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with other workloads.")] = 20,
    profile: ProfileOption = "70b",
    load: LoadOption = "stretched",
    hours: Annotated[float, typer.Option(min=0.01, help="Simulated time of a run.")] = 2.0,
    cap_wait: CapOption = None,
    max_context: Annotated[
        int, typer.Option(min=1, help="Leave out sessions with longer contexts.")
    ] = 200_000,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Tools are not named.")] = False,
    no_ends: Annotated[bool, typer.Option("--no-ends", help="Ends are not announced.")] = False,
    wrong_tags: WrongOption = None,
    adversarial_tags: Annotated[
        bool, typer.Option("--adversarial-tags", help="Stated waits: the contrary of the truth.")
    ] = False,
    bursty: Annotated[
        bool, typer.Option("--bursty", help="Sessions begin on the minute, all at once.")
    ] = False,
    resume_event: ResumeOption = 0.0,
    tier: TierOption = None,
    block_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a simulated block.")] = 512,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    json_path: JsonOption = None,
    plots: PlotsOption = None,
) -> None:
    """Replay TRACE on a simulated node under several policies, and compare them."""
    from agentkv.sim.profiles import find_profile
    from agentkv.sim.sweep import Plan
    from agentkv.sim.workload import Options

    _check(load, plots)
    options = Options(
        load=load,
        block_tokens=block_tokens,
        has_tags=not no_tags,
        has_ends=not no_ends,
        wrong_tags=wrong_tags,
        is_adversarial=adversarial_tags,
        is_bursty=bursty,
        resume_s=resume_event,
    )
    plan = Plan(
        profile=find_profile(profile),
        policies=tuple(name.strip() for name in policy.split(",")),
        oversubscription=_numbers("--oversubscription", oversubscription),
        dram=_numbers("--dram", dram, may_be_zero=True),
        num_seeds=seeds,
        duration_s=hours * 3600,
        warmup_s=hours * 3600 / 4,
        cap_wait_s=cap_wait,
        max_context=max_context,
        options=options,
        tiers=tuple(_tier(spec) for spec in tier or ()),
    )
    _simulate(traces, plan, jobs=jobs, json_path=json_path, plots=plots)


def _check(load: str, plots: Path | None) -> None:
    if load not in LOADS:
        raise ConfigError(f"--load {load}: not known; give {' or '.join(LOADS)}")
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--plots: needs matplotlib; pip install "vllm-agentkv[demo]"')


def _simulate(
    traces: Sequence[Path], plan: Plan, *, jobs: int, json_path: Path | None, plots: Path | None
) -> None:
    from agentkv.sim.readers import read_traces
    from agentkv.sim.sweep import prepare

    prepared = prepare(read_traces(traces), plan)
    results = _run(prepared, plan, jobs)
    _report(prepared, plan, results)
    if json_path is not None:
        _write(json_path, results)
    if plots is not None:
        from agentkv.sim.plots import draw_all

        for path in draw_all(results, plan.profile, plots):
            print(f"wrote {path}")


def _run(prepared: Prepared, plan: Plan, jobs: int) -> list[RunResult]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from agentkv.sim.sweep import simulate as run_all

    count = len(plan.policies) * len(plan.oversubscription) * len(plan.dram) * plan.num_seeds
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=count)
        return run_all(prepared, plan, num_jobs=jobs, on_done=lambda spec: progress.advance(task))


def _report(prepared: Prepared, plan: Plan, results: Sequence[RunResult]) -> None:
    from rich.console import Console

    from agentkv.sim.summary import table

    totals = prepared.totals
    print(
        f"{len(prepared.sessions)} sessions of {totals.turns:.1f} turns"
        f" ({prepared.num_left_out} too long and left out), prompts of"
        f" {totals.prompt_tokens:,.0f} tokens, {totals.new_tokens:,.0f} of them new, answers of"
        f" {totals.output_tokens:,.0f}, waits of {totals.wait_s:.3g} s on average; profile"
        f" {plan.profile.name}, {plan.options.load} waits"
    )
    Console(width=_TABLE_COLUMNS).print(table([result.row for result in results]))


def _write(path: Path, results: Sequence[RunResult]) -> None:
    rows: list[dict[str, Any]] = [result.row for result in results]
    try:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror})") from None
    print(f"wrote {path}")


def _numbers(option: str, text: str, *, may_be_zero: bool = False) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers with commas between, as 1,2,4") from None
    if any(not 0 <= value < 1e6 or (value == 0 and not may_be_zero) for value in values):
        raise ConfigError(f"{option} {text}: out of range; give numbers from 0 up, as 1,2,4")
    return values


def _tier(spec: str) -> TierSpec:
    from agentkv.sim.run import TierSpec

    try:
        name, size, speed = spec.split(":")
        pool_ratio, bytes_per_s = float(size), float(speed) * 1e9
        if not (pool_ratio > 0 and bytes_per_s > 0):
            raise ValueError
    except ValueError:
        raise ConfigError(f"--tier {spec}: give NAME:SIZE:GB_PER_S, as ssd:20:6") from None
    return TierSpec(name, pool_ratio, bytes_per_s, latency_s=0.001)
