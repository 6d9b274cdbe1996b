"""What `agentkv store` shows and writes: tables of at most 80 letters, and values for JSON."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentkv.config_values import format_size
from agentkv.tiers.disk.inspect import EngineFacts, NamespaceFacts, SegmentFacts, ages_s
from agentkv.tiers.disk.verify import EngineVerdict
from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.inspect import RedisNamespace, ServerMemory

MAX_DAMAGES_SHOWN = 20
NAME_CHARS = 16
"""Of a namespace's 32 letters; `--keep` takes them."""

LABELS = {
    "entry_bytes": "bytes of entries",
    "disk_bytes": "bytes on the disk",
    "idle_disk_bytes": "of these not in use",
    "file_system_free_bytes": "free on the file system",
    "file_system_bytes": "size of the file system",
    "newest_age_s": "newest entry, age",
    "median_age_s": "median entry, age",
    "oldest_age_s": "oldest entry, age",
    "server_used_bytes": "memory used by the servers",
    "server_max_bytes": "memory they may use",
    "eviction": "what they evict then",
}
NO_MANIFEST = "its manifest is missing or damaged: nobody can tell what it is of"


def console(*, is_error: bool = False) -> Console:
    """Progress goes to the error output, so that the other can be a file."""
    return Console(stderr=is_error)


# --- inspect ---


def print_disk(namespaces: Sequence[NamespaceFacts]) -> None:
    """Each namespace with its engines, then the manifests."""
    table = _table("namespace", "entries", "bytes", "on disk", "last used", "engine")
    for each in namespaces:
        last_s = max((engine.used_s for engine in each.engines), default=0.0)
        numbers = (each.num_entries, each.entry_bytes, each.disk_bytes)
        table.add_row(each.digest[:NAME_CHARS], *_counted(*numbers), _ago(last_s), "")
        for engine in each.engines:
            numbers = (engine.num_entries, engine.entry_bytes, engine.disk_bytes)
            state = "[green]in use[/]" if engine.is_locked else "idle"
            table.add_row(
                f"  {engine.folder.name}", *_counted(*numbers), _ago(engine.used_s), state
            )
    out = console()
    out.print(table if namespaces else "Nothing of agentkv's is there.")
    for each in namespaces:
        _print_manifest(out, each.digest, each.manifest)
        for segment in _segments(each):
            if segment.problem is not None:
                out.print(f"{segment.path}: {segment.problem}", style="red", markup=False)


def print_redis(namespaces: Sequence[RedisNamespace]) -> None:
    """Each namespace, then the manifests."""
    table = _table("namespace", "entries", "bytes")
    for each in namespaces:
        table.add_row(
            each.digest[:NAME_CHARS], f"{each.num_entries:,}", format_size(each.entry_bytes)
        )
    out = console()
    out.print(table if namespaces else "Nothing of agentkv's is there.")
    for each in namespaces:
        _print_manifest(out, each.digest, each.manifest)


def disk_value(namespaces: Sequence[NamespaceFacts]) -> dict[str, Any]:
    return {"namespaces": [_namespace_value(namespace) for namespace in namespaces]}


def redis_value(namespaces: Sequence[RedisNamespace]) -> dict[str, Any]:
    """Engines are null: a server does not know them."""
    values = [
        {
            "namespace": each.digest,
            "manifest": _manifest_value(each.manifest),
            "entries": each.num_entries,
            "entry_bytes": each.entry_bytes,
            "engines": None,
        }
        for each in namespaces
    ]
    return {"namespaces": values}


def _namespace_value(namespace: NamespaceFacts) -> dict[str, Any]:
    return {
        "namespace": namespace.digest,
        "manifest": _manifest_value(namespace.manifest),
        "entries": namespace.num_entries,
        "entry_bytes": namespace.entry_bytes,
        "disk_bytes": namespace.disk_bytes,
        "engines": [_engine_value(engine) for engine in namespace.engines],
    }


def _engine_value(engine: EngineFacts) -> dict[str, Any]:
    return {
        "path": str(engine.folder),
        "in_use": engine.is_locked,
        "last_used_s_ago": round(max(0.0, time.time() - engine.used_s), 1),
        "entries": engine.num_entries,
        "entry_bytes": engine.entry_bytes,
        "disk_bytes": engine.disk_bytes,
        "slots": engine.num_slots,
        "damaged_records": sum(s.num_damaged_records for s in engine.segments),
        "unreadable_files": {str(s.path): s.problem for s in engine.segments if s.problem},
    }


# --- stats ---


def disk_stats(path: Path, namespaces: Sequence[NamespaceFacts]) -> dict[str, Any]:
    """Sums of all namespaces; bytes and seconds."""
    engines = [engine for namespace in namespaces for engine in namespace.engines]
    ages = ages_s(namespaces)
    disk = shutil.disk_usage(path)
    return {
        "kind": "ssd",
        "namespaces": len(namespaces),
        "engines": len(engines),
        "engines_in_use": sum(engine.is_locked for engine in engines),
        "entries": len(ages),
        "slots": sum(engine.num_slots for engine in engines),
        "entry_bytes": sum(engine.entry_bytes for engine in engines),
        "disk_bytes": sum(engine.disk_bytes for engine in engines),
        "idle_disk_bytes": sum(e.disk_bytes for e in engines if not e.is_locked),
        "file_system_free_bytes": disk.free,
        "file_system_bytes": disk.total,
        "newest_age_s": round(ages[0], 1) if ages else None,
        "median_age_s": round(statistics.median(ages), 1) if ages else None,
        "oldest_age_s": round(ages[-1], 1) if ages else None,
    }


def redis_stats(
    namespaces: Sequence[RedisNamespace], memory: Sequence[ServerMemory]
) -> dict[str, Any]:
    """Sums of all namespaces, and what the servers say of their memory, in bytes."""
    limits = [each.max_bytes for each in memory]
    return {
        "kind": "redis",
        "namespaces": len(namespaces),
        "entries": sum(each.num_entries for each in namespaces),
        "entry_bytes": sum(each.entry_bytes for each in namespaces),
        "servers": len(memory),
        "server_used_bytes": sum(each.used_bytes for each in memory),
        "server_max_bytes": sum(limits) if all(limits) else None,
        "eviction": ", ".join(sorted({each.policy for each in memory})),
    }


def print_stats(value: Mapping[str, Any]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("", justify="right")
    for name, each in value.items():
        table.add_row(LABELS.get(name, name.replace("_", " ")), _stat(name, each))
    console().print(table)


def _stat(name: str, value: Any) -> str:
    if value is None:
        return "no limit" if name == "server_max_bytes" else "-"
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_s"):
        return _duration(value)
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


# --- verify ---


def verdicts_value(verdicts: Sequence[EngineVerdict]) -> dict[str, Any]:
    damages = [damage for verdict in verdicts for damage in verdict.damages]
    return {
        "sound": sum(verdict.num_sound for verdict in verdicts),
        "damaged": len(damages),
        "dropped": sum(verdict.num_dropped for verdict in verdicts),
        "in_use": [str(verdict.folder) for verdict in verdicts if verdict.is_in_use],
        "damages": [
            {"path": str(each.path), "slot": each.slot, "key": each.key, "problem": each.problem}
            for each in damages
        ],
    }


def print_verdicts(verdicts: Sequence[EngineVerdict]) -> None:
    out = console()
    damages = [damage for verdict in verdicts for damage in verdict.damages]
    for each in damages[:MAX_DAMAGES_SHOWN]:
        slot = "" if each.slot is None else f", slot {each.slot}"
        key = "" if each.key is None else f", entry {each.key[:16]}…"
        out.print(f"{each.path}{slot}{key}: {each.problem}", style="red", markup=False)
    if len(damages) > MAX_DAMAGES_SHOWN:
        out.print(f"… and {len(damages) - MAX_DAMAGES_SHOWN} more; --json has all of them.")
    for verdict in verdicts:
        if verdict.is_in_use:
            out.print(f"{verdict.folder}: an engine uses it, not verified", style="yellow")
    num_dropped = sum(verdict.num_dropped for verdict in verdicts)
    dropped = f", {num_dropped} dropped" if num_dropped else ""
    num_sound = sum(verdict.num_sound for verdict in verdicts)
    out.print(f"{num_sound:,} entries are sound, {len(damages):,} damages{dropped}.")


# --- prune ---


def print_candidates(candidates: Sequence[tuple[str, int]]) -> None:
    """To the error output, where the question is asked."""
    out = console(is_error=True)
    for name, num_bytes in candidates:
        out.print(f"  {name}  {format_size(num_bytes)}", markup=False, highlight=False)


def print_pruned(count: int, num_bytes: int) -> None:
    console().print(f"Deleted {count}, {format_size(num_bytes)}." if count else "Deleted nothing.")


# --- parts ---


def _table(*names: str) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if 0 < index < 5 else "left", no_wrap=True)
    return table


def _counted(num_entries: int, entry_bytes: int, disk_bytes: int) -> tuple[str, str, str]:
    return f"{num_entries:,}", format_size(entry_bytes), format_size(disk_bytes)


def _segments(namespace: NamespaceFacts) -> Iterable[SegmentFacts]:
    return (segment for engine in namespace.engines for segment in engine.segments)


def _manifest_value(manifest: Namespace | None) -> dict[str, str] | None:
    return None if manifest is None else dict(manifest.fields)


def _print_manifest(out: Console, digest: str, manifest: Namespace | None) -> None:
    if manifest is None:
        out.print(f"{digest[:NAME_CHARS]}: {NO_MANIFEST}", style="yellow")
        return
    fields = ", ".join(f"{name}={text}" for name, text in sorted(manifest.fields.items()))
    out.print(f"{digest[:NAME_CHARS]}: {fields}", style="dim", markup=False, highlight=False)


def _ago(time_s: float) -> str:
    return f"{_duration(max(0.0, time.time() - time_s))} ago"


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
