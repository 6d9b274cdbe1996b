"""`agentkv top`: a running server's agentkv, live in the terminal.

What: pool and tiers, what was decided, and the sessions; `--once`, `--svg` and `--json` are for
scripts. Where: registered by `cli.main`; `agentkv.top` looks and draws, `explain_source` and
`explain_report` bring and print the ledger of a chosen session.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.errors import ConfigError

UrlArgument = Annotated[str, typer.Argument(help="A running server.", metavar="URL")]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The server's API key.", envvar="VLLM_API_KEY", metavar="KEY"),
]
SaltOption = Annotated[
    str | None,
    typer.Option(
        "--salt",
        "--cache-salt",
        help="Show the sessions whose requests have this cache salt.",
        metavar="SALT",
    ),
]
IntervalOption = Annotated[
    float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.", metavar="SECONDS")
]
OnceOption = Annotated[
    bool,
    typer.Option("--once", help="Print one picture; so it is where the output is no terminal."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print what the server says as JSON, once.")
]
SvgOption = Annotated[
    Path | None, typer.Option(help="Draw one picture into this file.", metavar="FILE")
]

_SVG_WIDTH, _SVG_ROWS = 140, 30
_PIPE_WIDTH = 140


def top(
    url: UrlArgument = "http://localhost:8000",
    api_key: KeyOption = None,
    salt: SaltOption = None,
    interval: IntervalOption = 2.0,
    once: OnceOption = False,
    as_json: JsonOption = False,
    svg: SvgOption = None,
) -> None:
    """Watch a server: its pool and tiers, its sessions, and what is decided about their KV.

    Keys: q quits, arrows or j and k move, Enter shows a session's ledger, s sorts, / filters.
    """
    from rich.console import Console

    from agentkv.cli.explain_report import print_stories
    from agentkv.cli.explain_source import fetch_ledger
    from agentkv.top.board import Board
    from agentkv.top.fetch import Source
    from agentkv.top.live import watch
    from agentkv.top.screen import picture
    from agentkv.top.still import as_svg, as_value

    with Source(url, api_key=api_key, salt=salt) as source:
        first = source.look()
    if as_json:
        json.dump(as_value(source.url, first), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    scene = Board(source.url, first, print_stories).scene()
    if svg is not None:
        _write(svg, as_svg(scene, width=_SVG_WIDTH, max_rows=_SVG_ROWS))
        return
    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
        console = Console(width=width)
        console.print(picture(scene, width))
        return

    def ledger(session_id: str) -> list[dict[str, Any]]:
        return fetch_ledger(session_id, url=url, api_key=api_key, cache_salt=salt)

    watch(
        Source(url, api_key=api_key, salt=salt),
        first,
        ledger=ledger,
        printer=print_stories,
        interval_s=interval,
        console=console,
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--svg {path}: {error.strerror}") from None
