"""One system's replay: warm up, play, read what the server counted and what it cost.

Where: `replay_run` calls it for each system in turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentkv.bench.replay_counters import counted, read_counters
from agentkv.bench.replay_measures import Played
from agentkv.bench.replay_settings import Kind, ReplaySettings, System
from agentkv.demo.client import MODEL_NAME, Message, TurnRequest, send
from agentkv.demo.replay import REQUEST_TIMEOUT_S, play
from agentkv.demo.text import FillText
from agentkv.demo.workload import PlannedSession, Workload

WARM_UP_TOKENS = (1_500, 1_500, 40)
WARM_UP_ANSWER = 4
_LINKS = re.compile(r"measured at start: store ([\d.]+) GB/s, load ([\d.]+) GB/s")


def warm_up(url: str, model: str, fill: FillText, key: str) -> None:
    """Requests that nobody comes back to: the first ones of a server pay for what is set up then.

    Raises RequestError or httpx.HTTPError.
    """
    with httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_S) as client:
        for message in warm_up_messages(fill, key):
            send(client, TurnRequest(None, [message], max_tokens=WARM_UP_ANSWER, model=model))


def warm_up_messages(fill: FillText, key: str) -> Iterator[Message]:
    """The only message of each of these requests."""
    for number, tokens in enumerate(WARM_UP_TOKENS):
        text = f"Warm-up {key}/{number}. {fill.cut(tokens, f'{key}/{number}')}"
        yield {"role": "user", "content": text}


class _Ticker:
    """A `ReplayWatcher` that reports every turn that is done."""

    def __init__(self, on_turn: Callable[[], None]) -> None:
        self._on_turn = on_turn

    def turn_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """See ReplayWatcher."""

    def pause_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """See ReplayWatcher."""
        self._on_turn()

    def session_ended(self, agent: int, session: PlannedSession) -> None:
        """See ReplayWatcher."""
        self._on_turn()


def play_system(
    system: System,
    workload: Workload,
    *,
    url: str,
    model: str,
    pid: int | None,
    settings: ReplaySettings,
    on_turn: Callable[[], None],
) -> Played:
    """Blocks until all sessions are played. Raises RequestError or httpx.HTTPError."""
    counters, cpu_s, machine = read_counters(url), _cpu_s(pid), _Machine()
    replay = play(
        url,
        workload,
        num_agents=settings.num_agents,
        max_tokens=settings.answer_tokens,
        watcher=_Ticker(on_turn),
        client_kind=system.client,
        model=model,
        begin_within_s=settings.begin_within_s,
    )
    spent_s = _cpu_s(pid)
    server_s = spent_s - cpu_s if spent_s is not None and cpu_s is not None else None
    others = None if server_s is None else machine.others_share(server_s)
    added = read_counters(url).since(counters)
    return Played(
        workload=workload,
        replay=replay,
        counted=counted(added, is_ours=system.kind is Kind.AGENTKV),
        cpu_s=server_s,
        others_cpu_share=others,
    )


def served_model(url: str) -> str:
    """The first model that a server names; the demo's name if it names none."""
    with suppress(httpx.HTTPError, ValueError, LookupError):
        return str(httpx.get(f"{url}/v1/models", timeout=10.0).json()["data"][0]["id"])
    return MODEL_NAME


def link_speeds(log: Path) -> dict[str, float] | None:
    """What agentkv measured at its start, in bytes per second, from the server's log."""
    found: list[Any] = _LINKS.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        return None
    store, load = (float(speed) * 1e9 for speed in found[-1])
    return {"store_bytes_per_s": store, "load_bytes_per_s": load}


class _Machine:
    """How busy the machine is with what does not belong to a replay."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._busy_s, self._own_s = self._read()

    def others_share(self, server_s: float) -> float:
        """Of all cores' time since the start: what neither the server nor this process took."""
        busy_s, own_s = self._read()
        others_s = busy_s - self._busy_s - (own_s - self._own_s) - server_s
        passed_s = (time.perf_counter() - self._began_s) * (psutil.cpu_count() or 1)
        return max(0.0, others_s / passed_s)

    @staticmethod
    def _read() -> tuple[float, float]:
        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        return times.user + times.nice + times.system, own.user + own.system


def _cpu_s(pid: int | None) -> float | None:
    """Processor seconds that a process and all its children have taken so far."""
    if pid is None:
        return None
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        times = [each.cpu_times() for each in (leader, *leader.children(recursive=True))]
        return sum(each.user + each.system for each in times)
    return None
