"""The demo from start to end: checkpoint, two servers, ratio rounds, two replays, report.

READ FIRST in this package. Sizes here are chosen for two cores and four minutes: the pool is
smaller than the live KV of the agents, and DRAM holds part of the rest, so that every action has
its use.
"""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from tokenizers import Tokenizer

from agentkv import __version__
from agentkv.demo.agents import ClientKind
from agentkv.demo.checkpoint import ModelShape, write_checkpoint
from agentkv.demo.forced_answers import SERVER_ARGS
from agentkv.demo.ledger_file import LedgerFile, LedgerPause
from agentkv.demo.live import REFRESHES_PER_SECOND, BoardView, ReplayBoard
from agentkv.demo.prefetches import read_prefetches
from agentkv.demo.ratios import (
    PLUGIN,
    PREFETCHED,
    RESIDENT,
    STOCK,
    RatioPlan,
    RatioRounds,
    check_samples,
)
from agentkv.demo.replay import Replay, play
from agentkv.demo.rows import PauseRow, named_pauses, pause_rows
from agentkv.demo.servers import (
    Server,
    ServerSpec,
    failures_name_the_server,
    running,
    wait_ready,
)
from agentkv.demo.summary import Ratio, ratio, summarize
from agentkv.demo.text import FillText, recorded_sessions, training_texts
from agentkv.demo.tiers import redis_server, tier_config
from agentkv.demo.trace import trace_workload
from agentkv.demo.waits import shipped_waits
from agentkv.demo.workload import (
    PromptCounter,
    Workload,
    cap_waits,
    fitting_cap_s,
    shipped_workload,
)

# Two replays of this length, two servers starting and the ratio rounds make about three minutes.
REPLAY_BUDGET_S = 45.0
LABEL_WIDTH = 8


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What a run is made of; all of it ends up in the JSON file's `provenance`."""

    seed: int = 0
    num_sessions: int = 16
    num_agents: int = 8
    max_wait_s: float | None = None
    trace: Path | None = None
    block_size: int = 32
    pool_tokens: int = 12_288
    dram_bytes: int = 28 << 20
    max_context_tokens: int = 5_000
    max_turns: int = 16
    max_tokens: int = 8
    max_num_seqs: int = 4
    max_model_len: int = 8_192
    ratio_rounds: int = 10
    client_kind: ClientKind = ClientKind.TAGS
    tiers: tuple[str, ...] = ("dram",)

    @property
    def calls_tools(self) -> bool:
        """Whether the model's answers are tool calls: where nothing else tells of the tools."""
        return self.client_kind is ClientKind.PLAIN

    @property
    def pool_blocks(self) -> int:
        """KV blocks of the pool; one more than needed, because vLLM keeps one for itself."""
        return self.pool_tokens // self.block_size + 1


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All that the report and the picture need."""

    workload: Workload
    plugin: Replay
    stock: Replay
    pauses: dict[tuple[str, int], LedgerPause]
    rows: list[PauseRow]
    ratios: dict[str, Ratio]
    summary: dict[str, Any]
    provenance: dict[str, Any]


def run_demo(
    settings: DemoSettings,
    console: Console,
    *,
    keep_logs: Path | None = None,
    keep_ledger: Path | None = None,
) -> DemoResult:
    """Runs everything; blocks for some minutes. The ledger's file is copied to `keep_ledger`.

    Raises ServerError when a server fails, ConfigError for a trace that cannot be read.
    """
    began_s = time.perf_counter()
    with _folder(keep_logs) as folder:
        shape = ModelShape()
        recorded = recorded_sessions()
        tokenizer = write_checkpoint(
            folder / "model", training_texts(recorded), seed=settings.seed, shape=shape
        )
        fill = FillText(tokenizer, training_texts(recorded))
        workload = _workload(settings, tokenizer, fill)
        _print_workload(console, settings, workload, shape)
        ledger = LedgerFile(folder / "ledger.jsonl")
        with (
            redis_server(settings.tiers, folder) as redis_url,
            running(_specs(settings, folder, redis_url), folder) as servers,
        ):
            start_s = _wait_ready(servers, console)
            with failures_name_the_server(servers):
                ratios = _measure_ratios(settings, fill, servers, ledger, console)
                before = read_prefetches(servers[0].url)
                plugin = _replay(settings, "agentkv", servers[0], workload, ledger, console)
                prefetch = read_prefetches(servers[0].url).since(before)
                stock = _replay(settings, "stock vLLM", servers[1], workload, None, console)
        pauses = named_pauses(plugin, ledger.pauses().values())
        if keep_ledger is not None:
            shutil.copyfile(folder / "ledger.jsonl", keep_ledger)
    rows = pause_rows(workload, plugin, stock, pauses, block_size=settings.block_size)
    provenance = _provenance(settings, shape, workload)
    provenance |= {"servers_ready_s": start_s, "total_s": time.perf_counter() - began_s}
    return DemoResult(
        workload=workload,
        plugin=plugin,
        stock=stock,
        pauses=pauses,
        rows=rows,
        ratios=ratios,
        summary=summarize(rows, plugin, stock, ratios, prefetch),
        provenance=provenance,
    )


def plugin_config(
    settings: DemoSettings, folder: Path, redis_url: str | None = None
) -> dict[str, Any]:
    """vLLM's `--kv-transfer-config` for the server with agentkv."""
    return {
        "kv_connector": "agentkv",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "dram": {"size_bytes": settings.dram_bytes},
            "ledger": {"path": str(folder / "ledger.jsonl")},
            **tier_config(settings.tiers, folder, redis_url),
        },
    }


def waits_statement(workload: Workload) -> str:
    """One sentence on what was done to the waits."""
    notes = workload.notes
    return (
        f"Waits are not scaled, but cut at {notes['max_wait_s']:g} s (marked *):"
        f" {notes['waits_cut']} of {notes['waits_total']} were longer, the longest"
        f" {notes['longest_wait_s']:.0f} s."
    )


def _workload(settings: DemoSettings, tokenizer: Tokenizer, fill: FillText) -> Workload:
    counter = PromptCounter(tokenizer)
    if settings.trace is None:
        workload = shipped_workload(
            recorded_sessions(),
            counter,
            shipped_waits(),
            seed=settings.seed,
            num_sessions=settings.num_sessions,
            max_context_tokens=settings.max_context_tokens,
        )
    else:
        workload = trace_workload(
            settings.trace,
            counter,
            fill,
            seed=settings.seed,
            num_sessions=settings.num_sessions,
            max_context_tokens=settings.max_context_tokens,
            max_turns=settings.max_turns,
        )
    cap_s = settings.max_wait_s
    if cap_s is None:
        agents = settings.num_agents
        cap_s = fitting_cap_s(workload, num_agents=agents, budget_s=REPLAY_BUDGET_S)
    return cap_waits(workload, cap_s)


def _print_workload(
    console: Console, settings: DemoSettings, workload: Workload, shape: ModelShape
) -> None:
    contexts = [session.turns[-1].prompt_tokens for session in workload.sessions]
    average = sum(contexts) // len(contexts)
    dram_tokens = settings.dram_bytes // shape.kv_bytes_per_token
    _say(console, "Workload", f"{workload.statement()} {waits_statement(workload)}")
    _say(
        console,
        "Memory",
        f"{settings.num_agents} agents at once, contexts up to"
        f" {max(contexts):,} tokens (mean at the end {average:,}); pool {settings.pool_tokens:,}"
        f" tokens, DRAM {dram_tokens:,} tokens ({settings.dram_bytes >> 20} MiB).",
    )


def _specs(settings: DemoSettings, folder: Path, redis_url: str | None) -> list[ServerSpec]:
    transfer = {PLUGIN: plugin_config(settings, folder, redis_url), STOCK: None}
    return [
        ServerSpec(
            name=name,
            model=folder / "model",
            num_gpu_blocks=settings.pool_blocks,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            seed=settings.seed,
            kv_transfer=config,
            extra_args=SERVER_ARGS if settings.calls_tools else (),
        )
        for name, config in transfer.items()
    ]


def _wait_ready(servers: Sequence[Server], console: Console) -> float:
    with console.status("starting two vLLM servers, with and without agentkv"):
        start_s = wait_ready(servers)
    _say(console, "Servers", f"both ready after {start_s:.0f} s.")
    return start_s


def _measure_ratios(
    settings: DemoSettings,
    fill: FillText,
    servers: Sequence[Server],
    ledger: LedgerFile,
    console: Console,
) -> dict[str, Ratio]:
    plan = RatioPlan(
        seed=settings.seed,
        num_rounds=settings.ratio_rounds,
        pool_tokens=settings.pool_tokens,
        block_size=settings.block_size,
    )
    urls = {server.spec.name: server.url for server in servers}
    began_s = time.perf_counter()
    with console.status("timing resumes side by side") as status:
        samples = RatioRounds(plan, fill, urls).run(
            lambda done, total: status.update(f"timing resumes side by side: {done}/{total}")
        )
    checked = check_samples(samples, ledger.pauses(), settings.block_size)
    took_s = time.perf_counter() - began_s
    _say(console, "Resumes", f"{settings.ratio_rounds} rounds timed in {took_s:.0f} s.")
    return {
        "hold": ratio(checked, "hold", "local_hit"),
        "resume": ratio(checked, "swap", "recompute"),
        "prefetch": ratio(checked, PREFETCHED, RESIDENT),
    }


def _replay(
    settings: DemoSettings,
    title: str,
    server: Server,
    workload: Workload,
    ledger: LedgerFile | None,
    console: Console,
) -> Replay:
    board = ReplayBoard(title, workload, num_agents=settings.num_agents, ledger=ledger)
    with Live(
        BoardView(board.view),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
    ):
        replay = play(
            server.url,
            workload,
            num_agents=settings.num_agents,
            max_tokens=settings.max_tokens,
            watcher=board,
            client_kind=settings.client_kind if ledger is not None else ClientKind.PLAIN,
            calls_tools=settings.calls_tools,
        )
    _say(
        console,
        "Replay",
        f"{title}: {len(workload.sessions)} sessions, {len(replay.turns)} turns in"
        f" {replay.duration_s:.0f} s.",
    )
    return replay


def _say(console: Console, label: str, text: str) -> None:
    """A line of progress; what does not fit goes on below the text, not below the label."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=LABEL_WIDTH, style="bold")
    grid.add_column()
    grid.add_row(label, text)
    console.print(grid)


@contextmanager
def _folder(keep_logs: Path | None) -> Iterator[Path]:
    """A working folder: the user's, whose logs stay, or a temporary one."""
    if keep_logs is None:
        with tempfile.TemporaryDirectory(prefix="agentkv-demo-") as name:
            yield Path(name)
        return
    keep_logs.mkdir(parents=True, exist_ok=True)
    (keep_logs / "ledger.jsonl").unlink(missing_ok=True)
    yield keep_logs
    shutil.rmtree(keep_logs / "model", ignore_errors=True)


def _provenance(settings: DemoSettings, shape: ModelShape, workload: Workload) -> dict[str, Any]:
    return {
        "versions": {
            "agentkv": __version__,
            "vllm": vllm_version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "num_cores": os.cpu_count(),
        "settings": {**asdict(settings), "trace": str(settings.trace) if settings.trace else None},
        "pool_blocks": settings.pool_blocks,
        "dram_tokens": settings.dram_bytes // shape.kv_bytes_per_token,
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "model": {"weights": f"random, seed {settings.seed}", "dtype": "float32", **asdict(shape)},
        "workload": {"source": workload.source, **workload.notes},
        "sessions": {s.session_id: len(s.turns) for s in workload.sessions},
        "command": sys.argv[1:],
    }


def vllm_version() -> str | None:
    """The installed vLLM as "distribution version"; None when there is none."""
    for distribution in metadata.packages_distributions().get("vllm", []):
        return f"{distribution} {metadata.version(distribution)}"
    return None
