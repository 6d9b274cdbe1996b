"""`agentkv bench store`: what the tiers reach on this machine, against the best known here.

What: reads the options, runs the bench, prints the table and writes the JSON file.
Where: registered by `cli.main`; everything else is in `agentkv.bench`.
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

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

app = typer.Typer(help="Measure the tiers on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure the tiers on this machine."""


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
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise ConfigError(f"--json {json_path}: there is no folder {json_path.parent}; create it")
    # SIGTERM would end Python without removing what it wrote; as an exception it does.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    _run(settings, json_path)


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
