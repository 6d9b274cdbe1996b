"""`agentkv placement TRACE`: what it costs to send a session's turns here or there.

What: plays recorded sessions on several replicas under each placement, prints a table, writes JSON.
Where: registered by `cli.main`; the rest is in `agentkv.plan.placement` and `.placement_run`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentkv.cli import passport as cli_passport
from agentkv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentkv.plan.placement_run import Cluster, PlacementResult
    from agentkv.sim.trace import TraceSession

_COLUMNS = 110

TracesArgument = Annotated[
    list[Path], typer.Argument(help="As for agentkv simulate.", metavar="TRACE...")
]
AgentsOption = Annotated[int, typer.Option(min=1, help="Sessions at a time, on all replicas.")]
DramOption = Annotated[float, typer.Option(min=0, help="DRAM of a replica, in units of its pool.")]
AffinityOption = Annotated[
    str, typer.Option(help="Weights w of w*match - (1-w)*(load/max)^gamma.", metavar="LIST")
]
MaxLoadOption = Annotated[
    float | None,
    typer.Option(help="Turns at which a replica counts as full; an even share of the agents."),
]


def placement(
    traces: TracesArgument,
    replicas: Annotated[int, typer.Option(min=1, help="Engines to choose from.")] = 4,
    agents: AgentsOption = 64,
    profile: Annotated[
        str, typer.Option(help="Of one replica: 70b, 8b, gb200, or a JSON file.", metavar="NAME")
    ] = "70b",
    dram: DramOption = 1.0,
    affinity: AffinityOption = "0.5,0.7,0.9",
    gamma: Annotated[float, typer.Option(help="Exponent of the load.")] = 1.0,
    max_load: MaxLoadOption = None,
    max_context: Annotated[
        int, typer.Option(min=1, help="Leave out sessions with longer contexts.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Of the order in which sessions begin.")] = 0,
    json_path: cli_passport.JsonOption = None,
) -> None:
    """Compare placements of TRACE's turns on replicas: recomputed tokens, imbalance, waits."""
    from rich.console import Console

    from agentkv.plan.placement import placements
    from agentkv.plan.placement_run import Cluster, play
    from agentkv.sim.profiles import find_profile

    sessions = _read(traces, max_context)
    engine = find_profile(profile)
    cluster = Cluster(engine, replicas, int(dram * engine.pool_tokens))
    full = max(1, math.ceil(agents / replicas)) if max_load is None else max_load
    makers = placements(_weights(affinity), max_load=full, gamma=gamma)
    results = [play(sessions, cluster, make(), num_agents=agents, seed=seed) for make in makers]
    _print(results, cluster, agents, len(sessions), Console(width=_COLUMNS))
    if json_path is not None:
        rows = [
            {
                **asdict(result),
                "recomputed_share": result.recomputed_share,
                "turns_per_hour": result.turns_per_hour,
            }
            for result in results
        ]
        asked = {"replicas": replicas, "agents": agents, "profile": engine.name, "seed": seed}
        more = {"dram_tokens": cluster.dram_tokens, "gamma": gamma, "max_load": full}
        cli_passport.write_json(json_path, {**asked, **more, "placements": rows})


def _read(traces: list[Path], max_context: int) -> list[TraceSession]:
    """Raises ConfigError where no session is short enough."""
    from agentkv.sim.readers import read_traces
    from agentkv.sim.trace import fill_waits, guess_shared

    found = guess_shared(fill_waits(read_traces(traces)))
    kept = [session for session in found if session.longest_tokens <= max_context]
    if not kept:
        shortest = min((session.longest_tokens for session in found), default=0)
        raise ConfigError(
            f"--max-context {max_context}: no session is so short; give at least {shortest}"
        )
    return kept


def _weights(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--affinity {text}: give numbers from 0 to 1, as 0.5,0.9") from None


def _print(
    results: Sequence[PlacementResult],
    cluster: Cluster,
    agents: int,
    num_sessions: int,
    out: object,
) -> None:
    from rich.console import Console

    from agentkv.passport.report import make_table, show
    from agentkv.passport.text import number_text, seconds_text

    assert isinstance(out, Console)
    columns = ("placement", "recomputed", "tokens", "from DRAM", "moved", "imbalance")
    table = make_table(*columns, "wait p50", "p95", "turns/h")
    for result in results:
        table.add_row(
            result.placement,
            f"{100 * result.recomputed_share:.3g} %",
            number_text(result.recomputed_tokens),
            number_text(result.dram_tokens),
            f"{100 * result.moved_turns / result.num_turns:.0f} %",
            f"{result.imbalance:.2f}",
            seconds_text(result.wait_p50_s),
            seconds_text(result.wait_p95_s),
            number_text(result.turns_per_hour),
        )
    title = (
        f"{num_sessions} sessions, {agents} at a time, on {cluster.num_replicas} x"
        f" {cluster.profile.name} with {number_text(cluster.dram_tokens)} tokens of DRAM each"
    )
    show(out, title, table)
    out.print(
        "[dim]recomputed: of what could be reused; moved: turns that went elsewhere than the one"
        " before; imbalance: busiest replica / mean; wait: to the first token[/]",
        highlight=False,
    )
