"""`agentkv bench simulated`: the simulator against a replay on real servers.

What: reads the file of `agentkv bench replay --json`, plays it again in the simulator, prints both
numbers side by side, writes JSON. Where: registered by `cli.bench`; everything else is in
`agentkv.bench`, files `simulated*`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentkv.cli.bench_replay import check_parent, needs_extra

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentkv.bench.simulated import Comparison

FileArgument = Annotated[
    Path, typer.Argument(help="What `agentkv bench replay --json` wrote.", metavar="REPLAY")
]
FitOption = Annotated[
    Path | None,
    typer.Option(help="Fit the engine's profile to another replay's file.", metavar="FILE"),
]
DrawsOption = Annotated[int, typer.Option(min=1, help="Simulations of each row.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]


def simulated(
    replay: FileArgument,
    fit: FitOption = None,
    draws: DrawsOption = 20,
    json_path: JsonOption = None,
) -> None:
    """Simulate what a replay has played on real servers, and compare what both say."""
    needs_extra("simulated")
    from agentkv.bench.replay_report import markdown, read_json
    from agentkv.bench.report import write_json
    from agentkv.bench.simulated_report import (
        HEADERS,
        fitted_line,
        json_value,
        summary_lines,
        table_rows,
    )

    check_parent("--json", json_path)
    source = None if fit is None else read_json(fit, "--fit")
    comparison = _compare(read_json(replay, "REPLAY"), source, draws)
    print(f"{markdown(HEADERS, table_rows(comparison))}\n")
    for line in (fitted_line(comparison), *summary_lines(comparison)):
        print(line)
    if json_path is not None:
        write_json(json_path, json_value(comparison, str(replay)))
        print(f"Wrote {json_path}.")


def _compare(
    value: Mapping[str, Any], source: Mapping[str, Any] | None, num_draws: int
) -> Comparison:
    from rich.console import Console
    from rich.progress import Progress

    from agentkv.bench.simulated import compare, played_rows

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(played_rows(value)))
        return compare(value, source, num_draws=num_draws, on_row=lambda: progress.advance(task))
