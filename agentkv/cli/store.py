"""`agentkv store`: what lies in an SSD directory or on a Redis server, and its upkeep.

What: inspect, stats, verify and prune; each prints tables or, with `--json`, all it knows.
Why apart from the engine: an operator looks before a start, after a crash, or while engines run.
Where: registered by `cli.main`; what is done is in `agentkv.tiers`, what is shown in
`store_report`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentkv.cli import store_target as target
from agentkv.errors import ConfigError

if TYPE_CHECKING:
    from agentkv.tiers.redis.inspect import RedisView

DAMAGE_EXIT_CODE = 1
FAILURE_EXIT_CODE = 3

WhereArgument = Annotated[
    str,
    typer.Argument(
        help="The directory of ssd.path, or a Redis URL; its password in the environment.",
        metavar="PATH_OR_URL",
    ),
]
PathArgument = Annotated[Path, typer.Argument(help="The directory of ssd.path.", metavar="PATH")]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", help="Write all of it here; - is the output.", metavar="FILE"),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(help="Settings of agentkv: its redis section says how to log in.", metavar="FILE"),
]
DropOption = Annotated[bool, typer.Option("--drop-damaged", help="Drop what is damaged.")]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(help="A namespace that stays, or its first letters; repeat.", metavar="NAME"),
]
OlderOption = Annotated[
    str | None, typer.Option(help="Only what was not used for so long: 12h, 7d.", metavar="TIME")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that no engine uses.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

app = typer.Typer(
    help="Look at what the tiers below DRAM hold, check it, delete it.", no_args_is_help=True
)


@app.command()
def inspect(
    where: WhereArgument, json_path: JsonOption = None, agentkv_config: ConfigOption = None
) -> None:
    """List the namespaces with their entries, bytes and engines. Changes nothing."""
    from agentkv.cli import store_report as report

    if target.is_url(where):
        with _redis(where, agentkv_config) as view:
            found = view.namespaces()
        _show(report.redis_value(found), json_path, lambda: report.print_redis(found))
        return
    from agentkv.tiers.disk.inspect import inspect_disk

    namespaces = inspect_disk(Path(where).expanduser())
    _show(report.disk_value(namespaces), json_path, lambda: report.print_disk(namespaces))


@app.command()
def stats(
    where: WhereArgument, json_path: JsonOption = None, agentkv_config: ConfigOption = None
) -> None:
    """Sum up: entries, bytes, free space, ages. Changes nothing."""
    from agentkv.cli import store_report as report

    if target.is_url(where):
        with _redis(where, agentkv_config) as view:
            value = report.redis_stats(view.namespaces(), view.memory())
    else:
        from agentkv.tiers.disk.inspect import inspect_disk

        path = Path(where).expanduser()
        value = report.disk_stats(path, inspect_disk(path))
    _show(value, json_path, lambda: report.print_stats(value))


@app.command()
def verify(
    path: PathArgument, drop_damaged: DropOption = False, json_path: JsonOption = None
) -> None:
    """Read every entry that no engine uses and check it. Exit status 1 if any is damaged."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from agentkv.cli import store_report as report
    from agentkv.tiers.disk.inspect import inspect_disk
    from agentkv.tiers.disk.verify import num_verifiable, verify_disk

    if target.is_url(str(path)):
        raise ConfigError("store verify: only for a directory; the tier checks what Redis gives")
    path = path.expanduser()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=report.console(is_error=True), transient=True) as progress:
        task = progress.add_task("entries", total=num_verifiable(inspect_disk(path)))
        verdicts = verify_disk(
            path, drop_damaged=drop_damaged, on_entry=lambda: progress.advance(task)
        )
    value = report.verdicts_value(verdicts)
    _show(value, json_path, lambda: report.print_verdicts(verdicts))
    if value["damaged"]:
        raise typer.Exit(DAMAGE_EXIT_CODE)


@app.command()
def prune(
    where: WhereArgument,
    keep: KeepOption = None,
    older_than: OlderOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
    json_path: JsonOption = None,
    agentkv_config: ConfigOption = None,
) -> None:
    """Delete what no engine uses: all but --keep, what is --older-than, or --all. Asks first."""
    if not (keep or older_than or everything):
        raise ConfigError("store prune: say what to delete by --keep, --older-than or --all")
    if everything and keep:
        raise ConfigError("store prune: --all and --keep exclude each other; leave one out")
    if target.is_url(where):
        if older_than is not None:
            raise ConfigError(
                "store prune: --older-than is for a directory; a server forgets by redis.ttl_s"
            )
        _prune_redis(where, keep or [], yes, json_path, agentkv_config)
        return
    older_than_s = None if older_than is None else target.parse_duration("--older-than", older_than)
    _prune_disk(Path(where).expanduser(), keep or [], older_than_s, yes, json_path)


def _prune_disk(
    path: Path, keep: list[str], older_than_s: float | None, yes: bool, json_path: str | None
) -> None:
    from agentkv.cli import store_report as report
    from agentkv.tiers.disk.inspect import inspect_disk
    from agentkv.tiers.disk.prune import prune_disk, to_prune

    namespaces = inspect_disk(path)
    kept = target.resolve_names(keep, [namespace.digest for namespace in namespaces])
    chosen = to_prune(namespaces, keep=kept, older_than_s=older_than_s)
    size = sum(engine.disk_bytes for engine in chosen)
    report.print_candidates([(str(e.folder.relative_to(path)), e.disk_bytes) for e in chosen])
    gone = prune_disk(chosen) if _agrees(len(chosen), size, yes) else []
    _report_pruned(
        [str(engine.folder) for engine in gone], sum(e.disk_bytes for e in gone), json_path
    )


def _prune_redis(
    url: str, keep: list[str], yes: bool, json_path: str | None, config_file: str | None
) -> None:
    from agentkv.cli import store_report as report

    with _redis(url, config_file) as view:
        namespaces = view.namespaces()
        kept = target.resolve_names(keep, [namespace.digest for namespace in namespaces])
        chosen = [namespace for namespace in namespaces if namespace.digest not in kept]
        size = sum(namespace.entry_bytes for namespace in chosen)
        report.print_candidates([(each.digest, each.entry_bytes) for each in chosen])
        if not _agrees(len(chosen), size, yes):
            chosen = []
        view.delete([namespace.digest for namespace in chosen])
    num_bytes = sum(namespace.entry_bytes for namespace in chosen)
    _report_pruned([namespace.digest for namespace in chosen], num_bytes, json_path)


def _report_pruned(deleted: list[str], num_bytes: int, json_path: str | None) -> None:
    from agentkv.cli import store_report as report

    value = {"deleted": deleted, "bytes": num_bytes}
    _show(value, json_path, lambda: report.print_pruned(len(deleted), num_bytes))


def _agrees(count: int, num_bytes: int, yes: bool) -> bool:
    from agentkv.config_values import format_size

    if not count or yes:
        return count > 0
    return typer.confirm(f"Delete all of these, {format_size(num_bytes)}?", err=True)


def _show(value: dict[str, Any], json_path: str | None, show: Callable[[], None]) -> None:
    """Tables; with a file also JSON; with "-" nothing but JSON."""
    if json_path == "-":
        sys.stdout.write(target.to_json(value))
        return
    show()
    if json_path is not None:
        try:
            Path(json_path).write_text(target.to_json(value), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {json_path}: {error.strerror}") from None


@contextmanager
def _redis(url: str, config_file: str | None) -> Iterator["RedisView"]:
    """Raises ConfigError; a server that cannot be used is one line and exit status 3."""
    from agentkv.tiers.redis.inspect import StoreError, redis_view

    try:
        with redis_view(url, target.redis_access(url, config_file)) as view:
            yield view
    except StoreError as error:
        print(f"agentkv: {error}", file=sys.stderr)
        raise typer.Exit(FAILURE_EXIT_CODE) from None
