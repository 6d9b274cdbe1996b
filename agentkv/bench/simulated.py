"""`agentkv bench simulated`: what the simulator says of replays that a real engine has played.

READ FIRST of the comparison's files. From one JSON file of `agentkv bench replay`: its workloads
made again (`simulated_workload`), an engine profile fitted to its systems without DRAM
(`simulated_fit`), every row simulated (`simulated_play`), and both numbers side by side.
Why: policies are judged in the simulator over regimes that no machine at hand has; that is worth
as much as it agrees with an engine where there is one.
Why several draws: which turns meet is chance. Where memory is scarce a few milliseconds decide who
loses KV, on an engine too; so each row is simulated many times, with the fit's own residuals as
noise, and the median is the prediction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agentkv.bench.replay_settings import Kind, ReplaySettings
from agentkv.bench.replay_workloads import WorkloadMaker
from agentkv.bench.simulated_fit import Fitted, Known, fit
from agentkv.bench.simulated_pace import Source, paced
from agentkv.bench.simulated_play import measured, play, replayed
from agentkv.bench.simulated_workload import (
    scripts_of,
    settings_of,
    warm_up_scripts,
    workload_maker,
)
from agentkv.demo.servers import ServerSpec
from agentkv.errors import ConfigError
from agentkv.sim.scripted import Script

Row = Mapping[str, Any]

METRICS: Final = ("hit_tokens", "recomputed_tokens", "resume_ttft_mean_s")
NEAR: Final = 0.10
FEW: Final = 0.01
QUIET: Final = 0.10
DRAWS: Final = 20
_LEAST: Final = 1e-9
_STEP_OPTION: Final = "--max-num-batched-tokens"


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of one row, as the engine and the simulator give it.

    `simulated`: the median of the draws, nine of ten of which are between `low` and `high`.
    `slack`: a difference that counts as none whatever its share is: of recomputed tokens 1 % of
    the reusable ones, for few or none are the good answers. `is_fitted`: a system whose turns
    the profile comes from, no prediction. `others_cpu_share`: what other processes took of the
    machine while the engine played, which the simulator knows nothing of.
    """

    system: str
    oversubscription: float
    dram: float
    x: float
    seed: int
    metric: str
    engine: float
    simulated: float
    low: float
    high: float
    slack: float
    is_fitted: bool
    others_cpu_share: float | None

    @property
    def difference(self) -> float | None:
        """The simulator's over the engine's, less one; None over nothing."""
        return self.simulated / self.engine - 1 if self.engine else None

    @property
    def error(self) -> float:
        """The difference as a share, such that the slack is 10 %."""
        return abs(self.simulated - self.engine) / max(self.engine, self.slack / NEAR, _LEAST)

    @property
    def is_near(self) -> bool:
        return self.error <= NEAR

    @property
    def is_among_draws(self) -> bool:
        return self.low <= self.engine <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """`values` in the order of the replay's rows."""

    fitted: Fitted
    values: tuple[Compared, ...]

    def of(self, metric: str) -> list[Compared]:
        """The predictions of one number."""
        return [each for each in self.values if each.metric == metric and not each.is_fitted]


@dataclass(frozen=True, slots=True)
class _Means:
    """What every row is simulated with."""

    value: Row
    settings: ReplaySettings
    fitted: Fitted
    maker: WorkloadMaker
    scripts: Mapping[int, Sequence[Script]]
    num_draws: int


def compare(
    value: Row,
    source: Row | None = None,
    *,
    num_draws: int = DRAWS,
    on_row: Callable[[], None] = lambda: None,
) -> Comparison:
    """Of what `agentkv bench replay --json` wrote; `source`: another such file to fit the profile
    to, of the same model and machine. Raises ConfigError for what cannot be used.
    """
    settings = settings_of(value)
    fitted = fit_to(value if source is None else source, settings)
    maker = workload_maker(settings)
    seeds = {row["seed"] for row, _ in played_rows(value)}
    scripts = {seed: scripts_of(maker, maker.workload(seed)) for seed in seeds}
    means = _Means(value, settings, fitted, maker, scripts, num_draws)
    found: list[Compared] = []
    for row, system in played_rows(value):
        found.extend(_compare_row(row, system, means))
        on_row()
    return Comparison(fitted, tuple(found))


def fit_to(value: Row, settings: ReplaySettings) -> Fitted:
    """The profile of the engine that a file's replays were played on, for replays of `settings`."""
    about = value["provenance"]
    if about["settings"]["model"] != settings.model:
        raise ConfigError(
            f"--fit: a replay of model {about['settings']['model']}, the other is of "
            f"{settings.model}; give one of the same model"
        )
    noted = _noted(value)
    fitted = fit([each["turns"] for each in noted], about["calibration"], _known(value))
    return paced(fitted, list(_sources(noted, value)), settings_of(value), _noise)


def _sources(noted: Sequence[Row], value: Row) -> Iterator[Source]:
    maker = workload_maker(settings_of(value))
    systems = {system["name"]: system for system in value["provenance"]["settings"]["systems"]}
    for each in noted:
        yield Source(
            what=replayed({**each, "dram_bytes": 0}, systems[each["system"]], value),
            scripts=scripts_of(maker, maker.workload(each["seed"])),
            warm_up=warm_up_scripts(maker, f"{each['seed']}/{each['system']}"),
            turns=each["turns"],
        )


def _noise(fitted: Fitted, number: int) -> Callable[[], float]:
    """By how much the next turn takes longer in a draw."""
    numbers = random.Random(number)
    return lambda: numbers.choice(fitted.residuals_s)


def played_rows(value: Row) -> list[tuple[Row, Row]]:
    """Rows of servers that the replay started itself, each replay once, with its system."""
    systems = {system["name"]: system for system in value["provenance"]["settings"]["systems"]}
    return [
        (row, systems[row["system"]])
        for row in value["rows"]
        if systems[row["system"]]["kind"] != Kind.URL.value
        and row["played_at"] == f"{row['oversubscription']:g}/{row['dram']:g}"
    ]


def _compare_row(row: Row, system: Row, means: _Means) -> Iterator[Compared]:
    draws = list(_draws(row, system, means))
    hits = (row["local_hit_tokens"] or 0.0) + (row["external_hit_tokens"] or 0.0)
    engine = {**row, "hit_tokens": hits}
    for metric in METRICS:
        low, middle, high = np.quantile([draw[metric] for draw in draws], (0.05, 0.5, 0.95))
        yield Compared(
            system=row["system"],
            oversubscription=row["oversubscription"],
            dram=row["dram"],
            x=row["x"],
            seed=row["seed"],
            metric=metric,
            engine=engine[metric],
            simulated=float(middle),
            low=float(low),
            high=float(high),
            slack=FEW * row["reusable_tokens"] if metric == "recomputed_tokens" else 0.0,
            is_fitted=system["kind"] in (Kind.INFINITE.value, Kind.STOCK.value),
            others_cpu_share=row["others_cpu_share"],
        )


def _draws(row: Row, system: Row, means: _Means) -> Iterator[dict[str, float]]:
    what, fitted = replayed(row, system, means.value), means.fitted
    scripts = means.scripts[row["seed"]]
    warm_up = warm_up_scripts(means.maker, f"{row['seed']}/{row['system']}")
    for number in range(means.num_draws):
        noise = _noise(fitted, number)
        served = play(what, scripts, fitted.profile, means.settings, warm_up, noise)
        yield measured(
            served,
            scripts,
            block_size=means.settings.block_size,
            at_once_share=fitted.at_once_share,
        )


def _noted(value: Row) -> Sequence[Row]:
    """Replays without DRAM whose turns are in the file: those during which others took little of
    the machine, or all if there are none."""
    noted = value.get("turns", ())
    if not noted:
        raise ConfigError(
            "REPLAY: no turns of `infinite` or `stock` in it, to which a profile is fitted; "
            "replay with both in --systems"
        )
    return [each for each in noted if (each["others_cpu_share"] or 0.0) <= QUIET] or noted


def _known(value: Row) -> Known:
    about = value["provenance"]
    settings = about["settings"]
    return Known(
        pool_tokens=max(row["pool_tokens"] for row, _ in played_rows(value)),
        bytes_per_token=about["model"]["kv_bytes_per_token"],
        answer_tokens=settings["answer_tokens"],
        max_step_tokens=_step_tokens(settings["server_args"]),
        max_running=settings["max_running"],
        is_async="--no-async-scheduling" not in settings["server_args"],
        load_bytes_per_s=_load_speed(about),
    )


def _load_speed(about: Row) -> float:
    """What agentkv measured at its start; without it, what a whole load took."""
    if about["links"] is not None:
        return float(about["links"]["load_bytes_per_s"])
    calibration = about["calibration"]
    if calibration is None or not calibration["reload_s"]:
        raise ConfigError(
            "REPLAY: nothing in it says how fast KV is loaded; replay with --calibrate"
        )
    num_bytes = calibration["context_tokens"] * about["model"]["kv_bytes_per_token"]
    return float(num_bytes / calibration["reload_s"])


def _step_tokens(server_args: Sequence[str]) -> int:
    """Tokens of a step, from the command line that a server of the replay gets."""
    spec = ServerSpec("", Path(), 1, 1, 1, 1, 0, extra_args=tuple(server_args))
    words = " ".join(spec.command(0)).replace("=", " ").split()
    places = [place for place, word in enumerate(words) if word == _STEP_OPTION]
    return int(words[places[-1] + 1])
