"""`agentkv bench`: the tiers of this machine, the wait predictor, and replays on real servers.

What: reads the options, runs the bench, prints the tables and writes the JSON file.
Where: registered by `cli.main`; everything else is in `agentkv.bench`. `replay`,
`overhead` and `simulated` are in files of their own.
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from agentkv.cli.bench_overhead import overhead
from agentkv.cli.bench_replay import replay
from agentkv.cli.bench_simulated import simulated
from agentkv.errors import AgentKVError, ConfigError

if TYPE_CHECKING:
    from agentkv.bench.settings import BenchSettings

FAILURE_EXIT_CODE = 3

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]
TiersOption = Annotated[str, typer.Option(help="Of dram, ssd and redis.", metavar="LIST")]
PathOption = Annotated[
    Path | None,
    typer.Option(
        help="Where the SSD's files go, for as long as it runs. Default: the current directory.",
        metavar="DIR",
    ),
]
RedisUrlOption = Annotated[
    str | None,
    typer.Option(
        help="A server to measure, such as redis://host:6379/0; its password in the environment"
        " variable AGENTKV_REDIS_PASSWORD. Default: starts one.",
        metavar="URL",
    ),
]
UserOption = Annotated[
    str | None, typer.Option(help="User of the server's access list.", metavar="NAME")
]
SizeOption = Annotated[
    str, typer.Option(help="Bytes that each moves each way in a round.", metavar="SIZE")
]
BlockOption = Annotated[
    list[str] | None,
    typer.Option(
        "--block-size", help="Repeat for several. Default: 512KiB and 2MiB.", metavar="SIZE"
    ),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="How many rounds count.")]
SeedOption = Annotated[int, typer.Option(help="Bytes, names and order follow it.", min=0)]

FitOption = Annotated[
    list[Path], typer.Option("--fit", help="A trace to learn from; repeat it.", metavar="TRACE")
]
TraceOption = Annotated[
    list[Path],
    typer.Option(
        "--trace",
        help="A trace to be judged on; repeat it. The same files as --fit: halved by repository.",
        metavar="TRACE",
    ),
]
SplitSeedOption = Annotated[int, typer.Option("--seed", help="The split follows it.", min=0)]

app = typer.Typer(
    help="Measure the tiers, the wait predictor, or whole replays.", no_args_is_help=True
)


@app.callback()
def bench() -> None:
    """Measure the tiers, the wait predictor, or whole replays."""


app.command()(replay)
app.command()(overhead)
app.command()(simulated)


@app.command()
def store(
    json_path: JsonOption = None,
    tiers: TiersOption = "dram,ssd,redis",
    path: PathOption = None,
    redis_url: RedisUrlOption = None,
    redis_username: UserOption = None,
    size: SizeOption = "256MiB",
    block_sizes: BlockOption = None,
    rounds: RoundsOption = 9,
    seed: SeedOption = 0,
) -> None:
    """Compare each tier with memcpy, fio, vLLM's disk tier and a bare socket loop."""
    from agentkv.bench.settings import (
        BenchSettings,
        parse_block_sizes,
        parse_bytes,
        parse_tiers,
    )

    settings = BenchSettings(
        tiers=parse_tiers(tiers),
        path=None if path is None else _directory(path),
        redis_url=redis_url,
        redis_username=redis_username,
        size_bytes=parse_bytes("--size", size),
        block_sizes_bytes=parse_block_sizes(block_sizes or ("512KiB", "2MiB")),
        num_rounds=rounds,
        seed=seed,
    )
    _check_json_path(json_path)
    # SIGTERM would end Python without removing what it wrote; as an exception it does.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    _run(settings, json_path)


@app.command()
def predict(
    fit: FitOption, trace: TraceOption, json_path: JsonOption = None, seed: SplitSeedOption = 0
) -> None:
    """Judge the wait predictor and its rivals on recorded pauses (agentkv-trace-v1)."""
    from rich.console import Console

    from agentkv.bench import predict_report
    from agentkv.bench.predict_run import run_predict
    from agentkv.bench.report import write_json

    _check_json_path(json_path)
    result = run_predict(fit, trace, seed)
    console = Console()
    console.print(predict_report.predict_table(result))
    console.print(predict_report.coverage_table(result))
    for line in predict_report.notes(result):
        console.print(line, style="dim", markup=False, highlight=False)
    if json_path is not None:
        write_json(json_path, predict_report.json_value(result))
        console.print(f"Wrote {json_path}.", markup=False)


def _check_json_path(path: Path | None) -> None:
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: there is no folder {path.parent}; create it")


def _run(settings: "BenchSettings", json_path: Path | None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from agentkv.bench import report
    from agentkv.bench.run import num_steps, provenance, run_bench

    console = Console()
    columns = (TextColumn("{task.description:<36}"), BarColumn(20), MofNCompleteColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=num_steps(settings))
            results = run_bench(
                settings, lambda what: progress.update(task, description=what, advance=1)
            )
    except ConfigError:
        raise
    except AgentKVError as error:
        print(f"agentkv: {error}", file=sys.stderr)
        raise typer.Exit(FAILURE_EXIT_CODE) from None
    console.print(report.bench_table(results))
    for line in report.notes(results):
        console.print(line, style="yellow", markup=False)
    console.print(
        f"GB/s of the median of {settings.num_rounds} rounds, in which all took turns. ratio:"
        " agentkv / peer.",
        style="dim",
    )
    if json_path is not None:
        report.write_json(json_path, report.json_value(results, provenance(settings)))
        console.print(f"Wrote {json_path}.", markup=False)


def _directory(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"--path {path}: there is no such directory; create it, or name another")
    return path


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
