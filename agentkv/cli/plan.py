"""`agentkv plan MODEL`: how many agents a node holds, break-even waits, and which tiers pay.

What: reads the options, plans with closed formulas, with `--simulate` plays the node too; prints
tables, writes JSON and pictures. Where: registered by `cli.main`; the rest is in `agentkv.plan`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv.cli import passport as cli_passport
from agentkv.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv.passport.passport import Passport
    from agentkv.plan.capacity import Demand
    from agentkv.plan.planning import Answer
    from agentkv.plan.quantities import Distribution
    from agentkv.plan.simulated import SimulationRequest, Tail

_COLUMNS = 110
_DEFAULT_CONTEXT = "32768"
_DEFAULT_OUTPUT = 2048

CountOption = Annotated[int, typer.Option(min=1, help="Accelerators of the node.")]
PpOption = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
HbmOption = Annotated[
    str | None, typer.Option(help="Memory of an accelerator, if not the published.", metavar="SIZE")
]
WeightsOption = Annotated[
    str | None,
    typer.Option(help="Bytes of the weights, if not as config.json says.", metavar="SIZE"),
]
RuntimeOption = Annotated[
    str, typer.Option(help="What activations and the engine take on a device.", metavar="SIZE")
]
HeadroomOption = Annotated[float, typer.Option(help="Share of the pool that stays free.")]
ContextOption = Annotated[
    str | None,
    typer.Option(
        help="Prompt tokens: a number, or quantiles 0.5:16384,0.9:65536.", metavar="TOKENS"
    ),
]
OutputOption = Annotated[
    int | None, typer.Option(min=0, help="Answer tokens that a session keeps on top.")
]
SharedOption = Annotated[
    int | None, typer.Option(min=0, help="Tokens of the prompt that all sessions share.")
]
ForksOption = Annotated[int, typer.Option(min=1, help="Branches of a session; they share it.")]
WaitOption = Annotated[
    str | None,
    typer.Option(help="Tool waits in seconds: a number, or quantiles 0.5:3,0.9:60,0.99:300."),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(help="Recorded sessions: their contexts, waits, answers and shared prefix."),
]
TierOption = Annotated[
    list[str] | None,
    typer.Option("--tier", help="dram, ssd, redis: NAME:SIZE[:LINK[:PRICE]].", metavar="SPEC"),
]
LinkOption = Annotated[
    list[str] | None,
    typer.Option("--link", help="One more link to look at, NAME:GB_PER_S.", metavar="SPEC"),
]
MfuOption = Annotated[float, typer.Option(help="Share of the peak that prefill reaches.")]
GpuPriceOption = Annotated[
    float | None, typer.Option(min=0, help="Price of a GPU-hour, to compare with those of tiers.")
]
SimulateOption = Annotated[
    Path | None, typer.Option(help="Play these recorded sessions on the node.", metavar="TRACE")
]
SessionsOption = Annotated[
    str | None, typer.Option(help="Agents to simulate; else half of what fits, it, and twice it.")
]


def plan(
    model: cli_passport.ModelArgument,
    accelerator: Annotated[str, typer.Option(help="h100, h200, b200, gb200, ...")] = "h100",
    count: CountOption = 8,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel devices.")] = None,
    pp: PpOption = 1,
    hbm: HbmOption = None,
    weights: WeightsOption = None,
    runtime: RuntimeOption = "4.5GB",
    headroom: HeadroomOption = 0.1,
    dtype: cli_passport.DtypeOption = None,
    kv_dtype: cli_passport.KvDtypeOption = "auto",
    ssm_dtype: cli_passport.SsmDtypeOption = "auto",
    weights_dtype: cli_passport.WeightsDtypeOption = None,
    block_size: cli_passport.BlockOption = None,
    context: ContextOption = None,
    output: OutputOption = None,
    shared: SharedOption = None,
    forks: ForksOption = 1,
    wait: WaitOption = None,
    trace: TraceOption = None,
    tier: TierOption = None,
    link: LinkOption = None,
    mfu: MfuOption = 0.35,
    dram_price: Annotated[
        float, typer.Option(help="Of a byte in DRAM over one in contended GPU memory.")
    ] = 0.05,
    gpu_price: GpuPriceOption = None,
    simulate: SimulateOption = None,
    sessions: SessionsOption = None,
    policy: Annotated[str, typer.Option(help="As for agentkv simulate.")] = "lru,expected_cost",
    hours: Annotated[float, typer.Option(min=0.01, help="Simulated time of a run.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Simulated runs of each.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    json_path: cli_passport.JsonOption = None,
    plots: Annotated[
        Path | None, typer.Option(help="Write pictures to this folder.", metavar="DIR")
    ] = None,
) -> None:
    """Say how many agents MODEL can serve on a node, and when a pause is worth a swap."""
    from rich.console import Console

    from agentkv.passport.accelerators import find_accelerator
    from agentkv.passport.passport import Serving, make_passport
    from agentkv.passport.source import find_config, read_config
    from agentkv.plan.links import find_link
    from agentkv.plan.node import Node
    from agentkv.plan.planning import Question, check_share, make_plan
    from agentkv.plan.quantities import parse_bytes
    from agentkv.plan.tiers import parse_tiers

    _check_plots(plots)
    device = find_accelerator(accelerator)
    degree = tp or max(1, count // pp)
    block_tokens = block_size or cli_passport.BLOCK_TOKENS
    serving = Serving(dtype, kv_dtype, ssm_dtype, weights_dtype, block_tokens, degree)
    found = make_passport(read_config(find_config(model)), model, serving)
    node = Node(
        device,
        count,
        degree,
        pp,
        device.hbm_bytes if hbm is None else parse_bytes("--hbm", hbm),
        parse_bytes("--runtime", runtime),
        found.weights.bytes if weights is None else parse_bytes("--weights", weights),
    )
    question = Question(
        found,
        node,
        *_demand(found, context, output, shared, forks, headroom, wait, trace),
        tiers=parse_tiers(tier or (), device.link),
        links=tuple(find_link("--link", spec) for spec in link or ()),
        mfu=_positive("--mfu", mfu),
        dram_price=check_share("--dram-price", dram_price),
        gpu_price=gpu_price,
    )
    answer = make_plan(question)
    request = _request(answer, simulate, sessions, policy, hours, seeds, mfu)
    _show(answer, request, Console(width=_COLUMNS), jobs=jobs, json_path=json_path, plots=plots)


def _check_plots(plots: Path | None) -> None:
    if plots is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--plots: needs matplotlib; pip install "vllm-agentkv[demo]"')


def _positive(option: str, value: float) -> float:
    if not 0 < value <= 1:
        raise ConfigError(f"{option} {value:g}: give a share above 0 and up to 1, as 0.35")
    return value


def _demand(
    passport: Passport,
    context: str | None,
    output: int | None,
    shared: int | None,
    forks: int,
    headroom: float,
    wait: str | None,
    trace: Path | None,
) -> tuple[Demand, Distribution | None]:
    """Contexts and waits, of the options or of a trace; a trace's answers and prefix may be told
    otherwise."""
    from agentkv.plan.capacity import Demand
    from agentkv.plan.from_trace import read_recorded
    from agentkv.plan.planning import check_share
    from agentkv.plan.quantities import parse_quantity

    check_share("--headroom", headroom)
    if trace is None:
        contexts = parse_quantity("--context", context or _DEFAULT_CONTEXT, least=1)
        waits = None if wait is None else parse_quantity("--wait", wait, least=0)
        tokens = _DEFAULT_OUTPUT if output is None else output
        return Demand(contexts, tokens, shared or 0, forks, headroom), waits
    for option, value in (("--context", context), ("--wait", wait)):
        if value is not None:
            raise ConfigError(f"{option} {value}: --trace has its own; give one of the two")
    found = read_recorded(trace, passport.max_context_tokens)
    return (
        Demand(
            found.context,
            found.output_tokens if output is None else output,
            found.shared_tokens if shared is None else shared,
            forks,
            headroom,
        ),
        found.waits,
    )


def _request(
    answer: Answer,
    trace: Path | None,
    sessions: str | None,
    policy: str,
    hours: float,
    seeds: int,
    mfu: float,
) -> SimulationRequest | None:
    """What to simulate; without numbers of sessions, around the planned one."""
    from agentkv.plan.simulated import SimulationRequest

    if trace is None:
        if sessions is not None:
            raise ConfigError(f"--sessions {sessions}: is for --simulate; give that TRACE too")
        return None
    fit = max(1, answer.capacity.sessions)
    counts = (max(1, fit // 2), fit, 2 * fit) if sessions is None else _counts(sessions)
    names = tuple(name.strip() for name in policy.split(","))
    return SimulationRequest(trace, counts, names, hours, seeds, mfu)


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= 10**6 for count in counts):
        raise ConfigError(f"--sessions {text}: give whole numbers from 1 up, as 20,40,80")
    return counts


def _show(
    answer: Answer,
    request: SimulationRequest | None,
    out: Console,
    *,
    jobs: int,
    json_path: Path | None,
    plots: Path | None,
) -> None:
    from agentkv.plan.planning import to_json
    from agentkv.plan.report import print_plan

    print_plan(answer, out)
    tails = None if request is None else _simulate(answer, request, out, jobs, plots)
    if json_path is not None:
        simulated = None if tails is None else [asdict(tail) for tail in tails]
        cli_passport.write_json(json_path, {**to_json(answer), "simulated": simulated})
    if plots is not None:
        from agentkv.plan.plots import draw_all

        for path in draw_all(answer, plots):
            print(f"wrote {path}")


def _simulate(
    answer: Answer, request: SimulationRequest, out: Console, jobs: int, plots: Path | None
) -> Sequence[Tail]:
    from rich.console import Console
    from rich.progress import Progress

    from agentkv.plan.report import print_tails
    from agentkv.plan.simulated import count_runs, prepare_simulation, run_simulation, tails

    question = answer.question
    mean = question.demand.context.mean
    prepared, plan = prepare_simulation(
        question.passport, question.node, question.tiers, request, mean
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=count_runs(plan))

        def done(_: Any) -> None:
            progress.advance(task)

        results = run_simulation(prepared, plan, jobs, done)
    found = tails(results, question.node.num_replicas)
    print_tails(found, len(prepared.sessions), request.hours, out)
    if plots is not None:
        from agentkv.sim.plots import draw_all

        for path in draw_all(results, plan.profile, plots / "simulated"):
            print(f"wrote {path}")
    return found
