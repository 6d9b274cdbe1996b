"""`agentkv bench replay`: agent sessions played on real servers, ours against honest baselines.

What: reads the options, runs the replays with a progress bar, prints the tables, writes the files.
Why it imports late: `agentkv --help` should need neither matplotlib nor tokenizers.
Where: registered by `cli.bench`; everything else is in `agentkv.bench`, files `replay_*`.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from agentkv.errors import AgentKVError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv.bench.replay_run import Findings, Prepared
    from agentkv.bench.replay_settings import ReplaySettings

FAILURE_EXIT_CODE = 3
MISMATCH_EXIT_CODE = 1
_EXTRA = 'pip install "vllm-agentkv[demo]"'
NEEDED = ("matplotlib", "prometheus_client", "safetensors", "tokenizers")

SystemsOption = Annotated[
    str,
    typer.Option(
        help="Of stock, native, infinite and agentkv, also agentkv:POLICY@CLIENT+KEY=VALUE.",
        metavar="LIST",
    ),
]
UrlOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A server that runs already; repeat it. NAME=URL#MODEL names one of its models.",
        metavar="NAME=URL",
    ),
]
TraceOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="An agentkv-trace-v1 file; repeat it. Default: the shipped recording.", metavar="FILE"
    ),
]
OversubscriptionOption = Annotated[
    str, typer.Option(help="Live KV of all agents over the pool; commas between.", metavar="LIST")
]
DramOption = Annotated[str, typer.Option(help="DRAM over the pool; commas between.")]
AgentsOption = Annotated[int, typer.Option(min=1, help="Agents at a time.")]
SessionsOption = Annotated[int, typer.Option(min=1, help="Sessions of a seed.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Seeds: 0, 1, ...")]
RampOption = Annotated[
    float,
    typer.Option(min=0.0, help="Seconds within which the agents begin, one after the other."),
]
MaxWaitOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="Longer waits are cut to this, and counted; none is scaled. Default: no cut."
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        help="tiny or bench, with random weights; or a folder with a dense transformer.",
        metavar="NAME",
    ),
]
ServerArgOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An option of vLLM for every server, as --server-arg=--tensor-parallel-size=8; "
        "repeat it.",
        metavar="OPTION",
    ),
]
OneByOneOption = Annotated[
    bool,
    typer.Option(
        "--one-by-one", help="Start a server only when its turn comes: they share no memory."
    ),
]
CalibrateOption = Annotated[
    bool, typer.Option(help="First time how long KV takes to compute and to load.")
]
ClientOption = Annotated[
    str,
    typer.Option(help="How agents speak to agentkv: plain, header, tags or sdk.", metavar="KIND"),
]
ContextOption = Annotated[
    int, typer.Option("--max-context", min=256, help="The longest prompt, in tokens.")
]
TurnsOption = Annotated[int, typer.Option(min=3, help="Turns of a trace's session at most.")]
AnswerOption = Annotated[int, typer.Option(min=2, help="Tokens of every answer.")]
RunningOption = Annotated[int, typer.Option(min=1, help="Turns that a server runs at a time.")]
ConfigOption = Annotated[
    str | None,
    typer.Option("--agentkv-config", help="Settings of agentkv, YAML or JSON.", metavar="FILE"),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]
PlotsOption = Annotated[
    Path | None, typer.Option(help="Write the figures into this folder.", metavar="DIR")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(help="Write one file with tables and figures.", metavar="FILE"),
]
LogsOption = Annotated[
    Path | None, typer.Option(help="Keep the servers' logs and ledgers here.", metavar="DIR")
]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", help="Report on a file of --json again; plays nothing.", metavar="FILE"),
]
LockOption = Annotated[
    Path | None,
    typer.Option(help="Runs that name the same file take turns on a machine.", metavar="FILE"),
]


def replay(
    systems: SystemsOption = "stock,native,agentkv,infinite",
    url: UrlOption = None,
    trace: TraceOption = None,
    oversubscription: OversubscriptionOption = "2",
    dram: DramOption = "1",
    agents: AgentsOption = 12,
    sessions: SessionsOption = 24,
    seeds: SeedsOption = 3,
    ramp: RampOption = 8.0,
    max_wait: MaxWaitOption = None,
    model: ModelOption = "tiny",
    client: ClientOption = "tags",
    max_context: ContextOption = 5_000,
    max_turns: TurnsOption = 16,
    answer_tokens: AnswerOption = 8,
    max_running: RunningOption = 8,
    server_arg: ServerArgOption = None,
    calibrate: CalibrateOption = True,
    one_by_one: OneByOneOption = False,
    agentkv_config: ConfigOption = None,
    json_path: JsonOption = None,
    plots: PlotsOption = None,
    html: HtmlOption = None,
    keep_logs: LogsOption = None,
    lock: LockOption = None,
    read_from: FromOption = None,
) -> None:
    """Play agent sessions on real vLLM servers, ours and the baselines in turn, and compare."""
    needs_extra("replay")
    if read_from is not None:
        _report_again(read_from, plots=plots, html=html)
        return
    from agentkv.bench.replay_models import check_model
    from agentkv.bench.replay_settings import ReplaySettings, parse_numbers, parse_systems
    from agentkv.cli.serve import user_settings
    from agentkv.demo.agents import ClientKind

    if client not in (kinds := [kind.value for kind in ClientKind]):
        raise ConfigError(f"--client {client}: unknown; choose one of {', '.join(kinds)}")
    check_model(model)
    for option, path in (("--json", json_path), ("--html", html), ("--lock", lock)):
        check_parent(option, path)
    settings = ReplaySettings(
        systems=parse_systems(systems, url or (), ClientKind(client)),
        traces=tuple(dict.fromkeys(trace or ())),
        oversubscription=parse_numbers("--oversubscription", oversubscription),
        dram=parse_numbers("--dram", dram, may_be_zero=True),
        num_agents=agents,
        num_sessions=sessions,
        num_seeds=seeds,
        begin_within_s=ramp,
        max_wait_s=max_wait,
        model=model,
        max_context_tokens=max_context,
        max_turns=max_turns,
        answer_tokens=answer_tokens,
        max_running=max_running,
        server_args=tuple(server_arg or ()),
        is_calibrated=calibrate,
        is_one_by_one=one_by_one,
        lock=lock,
        keep_logs=keep_logs,
        extra=user_settings(config_file=agentkv_config, dram=None, policy=None),
    )
    stop_on_sigterm()
    _replay(settings, json_path=json_path, plots=plots, html=html)


def _report_again(path: Path, *, plots: Path | None, html: Path | None) -> None:
    from rich.console import Console

    from agentkv.bench.replay_report import read_json

    check_parent("--html", html)
    _publish(read_json(path), Console(), json_path=None, plots=plots, html=html)


def _replay(
    settings: ReplaySettings, *, json_path: Path | None, plots: Path | None, html: Path | None
) -> None:
    from rich.console import Console

    from agentkv.bench.replay_run import prepare

    console = Console()
    with _folder(settings.keep_logs) as folder:
        prepared = prepare(settings, folder)
        try:
            value = _run(prepared, console, json_path)
        except ConfigError:
            raise
        except AgentKVError as error:
            print(f"agentkv: {error}", file=sys.stderr)
            raise typer.Exit(FAILURE_EXIT_CODE) from None
    _publish(value, console, json_path=json_path, plots=plots, html=html)


def _run(prepared: Prepared, console: Console, json_path: Path | None) -> Mapping[str, Any]:
    """What the JSON file holds."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from agentkv.bench.replay_report import json_value
    from agentkv.bench.replay_run import run_replays
    from agentkv.bench.report import write_json

    columns = (TextColumn("{task.description:<44}"), BarColumn(16), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=prepared.num_turns())

        def on_group(findings: Findings) -> None:
            if json_path is not None:
                write_json(json_path, json_value(prepared, findings))

        findings = run_replays(
            prepared, lambda what, n: progress.update(task, description=what, advance=n), on_group
        )
    return json_value(prepared, findings)


def _publish(
    value: Mapping[str, Any],
    console: Console,
    *,
    json_path: Path | None,
    plots: Path | None,
    html: Path | None,
) -> None:
    from agentkv.bench import replay_report as report

    rows = value["rows"]
    for text in (
        report.markdown(report.HEADERS, report.table_rows(rows)),
        report.markdown(report.RATIO_HEADERS, report.ratio_rows(rows)),
        "\n".join(report.notes(value)),
    ):
        print(f"{text}\n")
    written = [] if json_path is None else [json_path]
    if plots is not None or html is not None:
        from agentkv.bench.replay_html import write_html
        from agentkv.bench.replay_plots import draw_all, save_all

        figures = draw_all(rows)
        written += [] if plots is None else save_all(figures, plots)
        if html is not None:
            write_html(html, figures, value)
            written.append(html)
    for path in written:
        console.print(f"Wrote {path}.", markup=False, highlight=False, soft_wrap=True)
    if any(row["token_mismatches"] for row in rows):
        raise typer.Exit(MISMATCH_EXIT_CODE)


def needs_extra(command: str) -> None:
    """Raises ConfigError if the extra `demo` is not installed."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"`agentkv bench {command}` needs {module}: {_EXTRA}")


def check_parent(option: str, path: Path | None) -> None:
    """Better now than after some minutes. Raises ConfigError."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; create it")


@contextmanager
def _folder(keep_logs: Path | None) -> Iterator[Path]:
    """A working folder: the user's, whose logs stay, or a temporary one."""
    if keep_logs is None:
        with tempfile.TemporaryDirectory(prefix="agentkv-bench-") as name:
            yield Path(name)
        return
    keep_logs.mkdir(parents=True, exist_ok=True)
    yield keep_logs


def stop_on_sigterm() -> None:
    """SIGTERM would end Python without stopping the servers; as an exception it stops them."""
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
