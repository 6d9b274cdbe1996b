"""`agentkv bench overhead`: what agentkv costs where it cannot help.

What: servers with the same model, one of them with agentkv, answer the same prompts in turn, so
that whatever else the machine does hits all alike. No prompt returns and nothing is short of
memory: all that the plugin does there, storing every block to DRAM included, is cost.
Where: used by `cli.bench_overhead`; servers and requests are those of the replay.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentkv.bench.replay_models import BenchModel
from agentkv.bench.replay_play import play_system
from agentkv.bench.replay_settings import Kind, ReplaySettings, System
from agentkv.bench.replay_stats import Estimate, estimate
from agentkv.bench.replay_systems import NO_PLUGINS, native_transfer
from agentkv.demo.client import MODEL_NAME
from agentkv.demo.ratios import REST_S
from agentkv.demo.replay import Replay
from agentkv.demo.servers import Server, ServerSpec, failures_name_the_server, running, wait_ready
from agentkv.demo.text import FillText, recorded_sessions, training_texts
from agentkv.demo.workload import PlannedSession, PlannedTurn, Workload

SYSTEMS = (Kind.STOCK, Kind.NATIVE, Kind.AGENTKV)
DRAM_BYTES = 1 << 30
TEMPLATE_TOKENS = 64
POOL_PROMPTS = 4  # times the prompts that run at the same time


@dataclass(frozen=True, slots=True)
class OverheadSettings:
    """Each run sends `num_prompts` prompts, `num_running` at a time."""

    num_runs: int = 10
    num_prompts: int = 32
    prompt_tokens: int = 512
    answer_tokens: int = 64
    num_running: int = 8
    block_size: int = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """One run on one server."""

    system: str
    run: int
    tokens_per_s: float
    itl_p50_s: float
    itl_p99_s: float


def run_overhead(
    settings: OverheadSettings, model: BenchModel, folder: Path, on_run: Callable[[str], None]
) -> list[Sample]:
    """All runs but the first, which warms up. Raises ServerError when a server fails."""
    fill = FillText(model.tokenizer, training_texts(recorded_sessions()))
    samples: list[Sample] = []
    specs = [_spec(kind, settings, model) for kind in SYSTEMS]
    with running(specs, folder) as servers:
        on_run("starting servers")
        wait_ready(servers, timeout_s=120.0 * len(servers))
        with failures_name_the_server(servers):
            for run in range(-1, settings.num_runs):
                order = random.Random(f"overhead/{run}").sample(servers, len(servers))
                for server in order:
                    on_run(f"run {run + 1}: {server.spec.name}")
                    sample = _sample(server, run, settings, fill)
                    samples += [sample] if run >= 0 else []
    return samples


def ratios(samples: Sequence[Sample], over: str, under: str) -> dict[str, Estimate | None]:
    """Medians of the ratios of paired runs, `over` / `under`, with bootstrap intervals."""
    theirs = {sample.run: sample for sample in samples if sample.system == under}
    pairs = [(sample, theirs[sample.run]) for sample in samples if sample.system == over]
    return {
        name: estimate([getattr(a, name) / getattr(b, name) for a, b in pairs])
        for name in ("tokens_per_s", "itl_p50_s", "itl_p99_s")
    }


def _spec(kind: Kind, settings: OverheadSettings, model: BenchModel) -> ServerSpec:
    tokens = settings.prompt_tokens + settings.answer_tokens + TEMPLATE_TOKENS
    blocks = -(-tokens // settings.block_size)
    transfer: dict[Kind, Any] = {
        Kind.NATIVE: native_transfer(DRAM_BYTES),
        Kind.AGENTKV: {
            "kv_connector": "agentkv",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"dram": {"size_bytes": DRAM_BYTES}},
        },
    }
    return ServerSpec(
        name=kind.value,
        model=model.folder,
        num_gpu_blocks=POOL_PROMPTS * settings.num_running * blocks,
        block_size=settings.block_size,
        max_model_len=blocks * settings.block_size,
        max_num_seqs=settings.num_running,
        seed=0,
        kv_transfer=transfer.get(kind),
        environment={} if kind is Kind.AGENTKV else NO_PLUGINS,
    )


def _sample(server: Server, run: int, settings: OverheadSettings, fill: FillText) -> Sample:
    sessions = tuple(_prompts(run, settings, fill))
    time.sleep(REST_S)
    replay = play_system(
        System(server.spec.name, Kind(server.spec.name)),
        Workload("overhead", sessions, {}),
        url=server.url,
        model=MODEL_NAME,
        pid=None,
        settings=ReplaySettings(
            systems=(),
            num_agents=settings.num_running,
            answer_tokens=settings.answer_tokens,
            begin_within_s=0.0,
        ),
        on_turn=lambda: None,
    ).replay
    return sample_of(server.spec.name, run, replay, settings.answer_tokens)


def sample_of(system: str, run: int, replay: Replay, answer_tokens: int) -> Sample:
    """Answer tokens per second and gaps between tokens of one run."""
    gaps_s = [gap for turn in replay.turns.values() for gap in turn.result.gaps_s]
    p50_s, p99_s = np.percentile(gaps_s, (50, 99))
    rate = len(replay.turns) * answer_tokens / replay.duration_s
    return Sample(system, run, rate, float(p50_s), float(p99_s))


def _prompts(run: int, settings: OverheadSettings, fill: FillText) -> Iterator[PlannedSession]:
    """Sessions of one turn; no prompt begins as another one does."""
    for number in range(settings.num_prompts):
        name = f"{run}.{number}"
        text = fill.cut(settings.prompt_tokens, f"overhead/{name}")
        message = {"role": "user", "content": f"{name} {text}"}
        turn = PlannedTurn((message,), prompt_tokens=settings.prompt_tokens, known_tokens=0)
        yield PlannedSession(name, (turn,))
