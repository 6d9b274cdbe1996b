"""`agentkv explain SESSION`: why its KV was held, swapped or recomputed, and what that was worth.

What: reads a session's ledger from a file or a running server and prints a block for each pause.
Where: registered by `cli.main`; `explain_source` reads, `agentkv.explain` joins, `explain_report`
prints.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentkv.errors import ConfigError

SessionArgument = Annotated[
    str, typer.Argument(help="The session's id, as its requests name it.", metavar="SESSION")
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        help="A ledger file: the server's ledger.path, or one that the demo kept.", metavar="FILE"
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        help="A running server, which tells what it has in memory. Default, where there is no"
        " --ledger: http://localhost:8000.",
        metavar="URL",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The server's API key.", envvar="VLLM_API_KEY", metavar="KEY"),
]
SaltOption = Annotated[
    str | None,
    typer.Option(help="The cache salt of the session's requests, if any.", metavar="SALT"),
]
LastOption = Annotated[
    int | None, typer.Option(min=1, help="Only the last so many pauses.", metavar="N")
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", help="Write all of it here; - is the output.", metavar="FILE"),
]


def explain(
    session: SessionArgument,
    ledger: LedgerOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    cache_salt: SaltOption = None,
    last: LastOption = None,
    json_path: JsonOption = None,
) -> None:
    """Say for each pause of SESSION what was predicted, decided, found and regretted."""
    from agentkv.cli import explain_report as report
    from agentkv.cli import explain_source as source
    from agentkv.explain import explain_value, pause_stories
    from agentkv.terminal_text import clean, clean_all

    if ledger is not None and url is not None:
        raise ConfigError("explain: --ledger and --url exclude each other; leave one out")
    if ledger is not None:
        records = source.read_ledger(ledger.expanduser(), session)
    else:
        records = source.fetch_ledger(
            session, url=url or source.DEFAULT_URL, api_key=api_key, cache_salt=cache_salt
        )
    stories = pause_stories(records)
    stories = stories if last is None else stories[-last:]
    if json_path is not None:
        text = json.dumps(explain_value(session, stories), indent=2) + "\n"
        if json_path == "-":
            sys.stdout.write(text)
            return
        _write(Path(json_path), text)
    # The file keeps names as they are; a terminal would obey them.
    shown = pause_stories(clean_all(records))
    report.print_stories(clean(session), shown if last is None else shown[-last:])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from None
