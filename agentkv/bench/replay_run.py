"""`agentkv bench replay` from start to end: checkpoint, workloads, replays by turns, rows.

READ FIRST of the replay's files. For every seed and regime all systems' servers are started anew
and wait; then they play one after the other, in an order that follows the seed. Why fresh servers:
nothing of one replay is left for the next, and no system learns from more sessions than another.
Why one at a time and with a rest: vLLM's processes spin for a second after their last message.
"""

from __future__ import annotations

import fcntl
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv.bench.replay_calibrate import Calibration, calibrate, calibration_spec
from agentkv.bench.replay_measures import (
    Played,
    measure,
    mismatches,
    resume_times_s,
    turn_rows,
)
from agentkv.bench.replay_models import BenchModel, open_model
from agentkv.bench.replay_play import link_speeds, play_system, served_model, warm_up
from agentkv.bench.replay_regimes import Regime, live_tokens, longest_request_tokens, regimes
from agentkv.bench.replay_settings import Kind, ReplaySettings, System
from agentkv.bench.replay_systems import Setup, is_played, play_key, server_name, server_spec
from agentkv.bench.replay_workloads import WorkloadMaker, stamped
from agentkv.demo.ratios import REST_S
from agentkv.demo.servers import (
    READY_TIMEOUT_S,
    Server,
    ServerSpec,
    failures_name_the_server,
    running,
    wait_ready,
)
from agentkv.demo.workload import Workload

OnTurn = Callable[[str, int], None]
"""What is being done, and how many more turns are done."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is known before a server starts. `regimes` is [None] if all servers run already."""

    settings: ReplaySettings
    model: BenchModel
    folder: Path
    maker: WorkloadMaker
    workloads: Sequence[Workload]
    regimes: Sequence[Regime | None]
    all_tokens: int
    longest_tokens: int

    def setup(self, seed: int) -> Setup:
        return Setup(
            settings=self.settings,
            model=self.model,
            folder=self.folder,
            all_tokens=self.all_tokens,
            longest_tokens=self.longest_tokens,
            seed=seed,
        )

    def systems(self, regime: Regime | None) -> list[System]:
        """Those that play there."""
        return [s for s in self.settings.systems if regime is None or is_played(s, regime)]

    def num_turns(self) -> int:
        """How many turns will be played in all."""
        keys = {_key(system, regime) for regime in self.regimes for system in self.systems(regime)}
        sessions = (s for w in self.workloads for s in w.sessions)
        return len(keys) * sum(len(session.turns) for session in sessions)


@dataclass(slots=True)
class Findings:
    """What a run has found so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Every turn of the systems without DRAM, by seed: what this engine takes for its work, to
    which `agentkv bench simulated` fits a profile."""

    calibration: Calibration | None = None
    links: dict[str, float] | None = None


def prepare(settings: ReplaySettings, folder: Path) -> Prepared:
    """Writes the model and makes the workloads. Raises ConfigError for what the user must mend."""
    model = open_model(settings.model, folder)
    maker = WorkloadMaker.of(settings, model.tokenizer)
    workloads = [maker.workload(seed) for seed in range(settings.num_seeds)]
    answer = settings.answer_tokens
    contexts = [[s.turns[-1].prompt_tokens + answer for s in w.sessions] for w in workloads]
    has_own = any(system.kind is not Kind.URL for system in settings.systems)
    return Prepared(
        settings=settings,
        model=model,
        folder=folder,
        maker=maker,
        workloads=workloads,
        regimes=regimes(settings, workloads, model.kv_bytes_per_token) if has_own else [None],
        all_tokens=max(sum(each) + settings.block_size * 2 * len(each) for each in contexts),
        longest_tokens=longest_request_tokens(workloads, answer),
    )


def run_replays(
    prepared: Prepared, on_turn: OnTurn, on_group: Callable[[Findings], None]
) -> Findings:
    """Plays everything; `on_group` after each seed and regime, with what there is by then.

    Raises ServerError when a server fails.
    """
    findings = Findings()
    if prepared.regimes[0] is not None and prepared.settings.is_calibrated:
        with _held(prepared.settings.lock):
            on_turn("calibrating", 0)
            findings.calibration = _calibrate(prepared)
    for seed in range(prepared.settings.num_seeds):
        known: dict[tuple[Any, ...], tuple[str | None, Played]] = {}
        for regime in prepared.regimes:
            with _held(prepared.settings.lock):
                _Group(prepared, regime, seed, findings, known, on_turn).run()
            on_group(findings)
    return findings


@dataclass(slots=True)
class _Group:
    """All systems at one seed and regime. `known`: replays that serve more than one regime."""

    prepared: Prepared
    regime: Regime | None
    seed: int
    findings: Findings
    known: dict[tuple[Any, ...], tuple[str | None, Played]]
    on_turn: OnTurn

    def run(self) -> None:
        systems = self.prepared.systems(self.regime)
        label = self.regime.label if self.regime else None
        order = in_turn(systems, self.seed, label)
        new = [system for system in order if _key(system, self.regime) not in self.known]
        is_one_by_one = self.prepared.settings.is_one_by_one
        for batch in [[system] for system in new] if is_one_by_one else [new]:
            self._play_batch(batch, label)
        self.findings.rows.extend(self._rows(systems))

    def _play_batch(self, systems: Sequence[System], label: str | None) -> None:
        """Systems whose servers are there at the same time; one after the other plays."""
        own = [system for system in systems if system.kind is not Kind.URL]
        self.on_turn(f"seed {self.seed} at {label}: starting {len(own)} servers", 0)
        with running([self._spec(system) for system in own], self.prepared.folder) as servers:
            if servers:
                wait_ready(servers, timeout_s=READY_TIMEOUT_S * (1 + len(servers)))
            by_name = dict(zip((system.name for system in own), servers, strict=True))
            with failures_name_the_server(servers):
                for system in systems:
                    played = self._play(system, by_name.get(system.name))
                    self.known[_key(system, self.regime)] = (label, played)
                    self._keep_turns(system, label, played)
                    self._note_turns(system, played)

    def _note_turns(self, system: System, played: Played) -> None:
        if system.kind in (Kind.INFINITE, Kind.STOCK):
            rows = list(turn_rows(played))
            share = played.others_cpu_share
            self.findings.turns.append(
                {
                    "kind": system.kind.value,
                    "system": system.name,
                    "seed": self.seed,
                    "pool_tokens": self.regime.pool_tokens if self.regime else None,
                    "others_cpu_share": share,
                    "turns": rows,
                }
            )

    def _keep_turns(self, system: System, label: str | None, played: Played) -> None:
        folder = self.prepared.settings.keep_logs
        if folder is not None:
            lines = (f"{json.dumps(row)}\n" for row in turn_rows(played))
            name = server_name(system, label, self.seed)
            (folder / f"{name}.turns.jsonl").write_text("".join(lines), encoding="utf-8")

    def _spec(self, system: System) -> ServerSpec:
        assert self.regime is not None
        return server_spec(system, self.regime, self.prepared.setup(self.seed))

    def _play(self, system: System, server: Server | None) -> Played:
        workload = self.prepared.workloads[self.seed]
        if system.kind is Kind.URL:
            stamp = f"{self.seed}-{time.time_ns():x}"
            workload = stamped(workload, stamp, self.prepared.maker.counter)
        url = server.url if server is not None else str(system.url)
        label = self.regime.label if self.regime else "-"
        model = system.model or served_model(url)
        warm_up(url, model, self.prepared.maker.fill, f"{self.seed}/{system.name}")
        time.sleep(REST_S)
        played = play_system(
            system,
            workload,
            url=url,
            model=model,
            pid=server.process.pid if server is not None else None,
            settings=self.prepared.settings,
            on_turn=lambda: self.on_turn(f"seed {self.seed} at {label}: {system.name}", 1),
        )
        if system.kind is Kind.AGENTKV and server is not None:
            self.findings.links = link_speeds(server.log_path) or self.findings.links
        time.sleep(REST_S)
        return played

    def _rows(self, systems: Sequence[System]) -> Iterator[dict[str, Any]]:
        found = {system.name: self.known[_key(system, self.regime)] for system in systems}
        reference = _reference(systems)
        for system in systems:
            played_at, played = found[system.name]
            differing = None
            if reference is not None and system.kind is not Kind.URL:
                differing = mismatches(played.replay, found[reference][1].replay)
            yield {
                "system": system.name,
                "policy": system.policy,
                "client": system.client.value,
                **self._place(played_at),
                "seed": self.seed,
                "token_mismatches": differing,
                "compared_with": reference,
                **measure(played, block_size=self.prepared.settings.block_size),
                "resume_ttft_s": resume_times_s(played.replay),
            }

    def _place(self, played_at: str | None) -> dict[str, Any]:
        settings, regime = self.prepared.settings, self.regime
        live = live_tokens(
            self.prepared.workloads[self.seed],
            num_agents=settings.num_agents,
            answer_tokens=settings.answer_tokens,
        )
        return {
            "oversubscription": regime.oversubscription if regime else None,
            "dram": regime.dram_ratio if regime else None,
            "x": regime.pressure_x(live) if regime else None,
            "live_tokens": live,
            "pool_tokens": regime.pool_tokens if regime else None,
            "dram_bytes": regime.dram_bytes if regime else None,
            "played_at": played_at,
        }


def in_turn(systems: Sequence[System], seed: int, label: str | None) -> list[System]:
    """The order in which they play; another one at each seed and regime."""
    return random.Random(f"{seed}/{label}/order").sample(systems, len(systems))


def _reference(systems: Sequence[System]) -> str | None:
    """The system whose answers the others' are compared with: the one that loses no KV."""
    names = [system.name for system in systems if system.kind is not Kind.URL]
    preferred = [name for name in (Kind.INFINITE.value, Kind.STOCK.value) if name in names]
    return (preferred or names or [None])[0]


def _key(system: System, regime: Regime | None) -> tuple[Any, ...]:
    return (system.name,) if regime is None else play_key(system, regime)


def _calibrate(prepared: Prepared) -> Calibration:
    setup = prepared.setup(0)
    with running([calibration_spec(setup)], prepared.folder) as servers:
        wait_ready(servers)
        with failures_name_the_server(servers):
            return calibrate(servers[0], prepared.maker.fill, setup)


@contextmanager
def _held(lock: Path | None) -> Iterator[None]:
    """Runs on one machine that name the same file take turns."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
