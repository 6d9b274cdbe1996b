"""`agentkv store` as an operator types it, on real directories and a real server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import redis_rig
from kit.redis_server import running
from tiers.disk_kit import NAMESPACE, entries_of, loaded, open_store, segment_files
from typer.testing import CliRunner

from agentkv.cli.main import build_app, main
from agentkv.cli.store_target import is_url, parse_duration, resolve_names
from agentkv.errors import ConfigError
from agentkv.tiers.disk.read_segment import read_table
from agentkv.tiers.namespace import Namespace

OTHER = Namespace({"model": "other"})
ROOMY = {"size_bytes": 32 << 20, "segment_bytes": 1 << 20}
"""So that a store need not delete what others left."""


def call(*args: str, text: str = "") -> Any:
    """The command's result; its output is 80 letters wide."""
    return CliRunner().invoke(build_app(), ["store", *args], input=text, env={"COLUMNS": "80"})


def value(*args: str) -> dict[str, Any]:
    done = call(*args, "--json", "-")
    assert done.exit_code in (0, 1), done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two namespaces of five entries, left behind by engines that have ended."""
    for namespace in (NAMESPACE, OTHER):
        store = open_store(tmp_path, namespace=namespace, **ROOMY)
        assert all(store.store(entries_of(range(5))))
        store.close()
    return tmp_path


def damage(path: Path) -> None:
    """Flips a byte of one entry."""
    file = segment_files(path / NAMESPACE.digest)[0]
    table = read_table(file, NAMESPACE.digest)
    assert not isinstance(table, str)
    with file.open("r+b") as opened:
        opened.seek(table.shape.slot_offset(min(table.records)) + 100)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 0xFF]))


def test_inspect_lists_namespaces_manifests_and_engines_on_eighty_letters(path: Path) -> None:
    store = open_store(path, **ROOMY)
    done = call("inspect", str(path))
    store.close()
    assert done.exit_code == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "…" not in done.stdout
    for text in (NAMESPACE.digest[:16], OTHER.digest[:16], "model=other", "in use", "idle"):
        assert text in done.stdout


def test_inspect_json_has_the_lock_state(path: Path) -> None:
    store = open_store(path, **ROOMY)
    answer = value("inspect", str(path))
    store.close()
    states = {n["namespace"]: [e["in_use"] for e in n["engines"]] for n in answer["namespaces"]}
    assert states == {NAMESPACE.digest: [True], OTHER.digest: [False]}
    assert [n["entries"] for n in answer["namespaces"]] == [5, 5]


def test_stats_sum_up(path: Path) -> None:
    answer = value("stats", str(path))
    assert (answer["namespaces"], answer["entries"], answer["engines_in_use"]) == (2, 10, 0)
    assert answer["entry_bytes"] == 10 * 16384
    assert "bytes of entries" in call("stats", str(path)).stdout


def test_verify_ends_with_1_on_damage_and_changes_nothing_unless_told(path: Path) -> None:
    assert call("verify", str(path)).exit_code == 0
    damage(path)
    for _ in range(2):
        done = call("verify", str(path))
        assert done.exit_code == 1
        assert "9 entries are sound, 1 damages" in done.stdout
    assert call("verify", str(path), "--drop-damaged").exit_code == 1
    answer = value("verify", str(path))
    assert (answer["sound"], answer["damaged"]) == (9, 0)


def test_verify_names_the_entry(path: Path) -> None:
    damage(path)
    (found,) = value("verify", str(path))["damages"]
    assert (
        len(found["key"]) == 72 and found["problem"] == "its bytes are not those that were stored"
    )


def test_prune_asks_and_no_keeps_all(path: Path) -> None:
    done = call("prune", str(path), "--all", text="n\n")
    assert "Delete all of these" in done.stderr and "Deleted nothing" in done.stdout
    assert len(value("inspect", str(path))["namespaces"]) == 2
    assert "Deleted 2" in call("prune", str(path), "--all", text="y\n").stdout
    assert value("inspect", str(path)) == {"namespaces": []}


def test_prune_keeps_what_is_named_and_what_is_locked(path: Path) -> None:
    answer = value("prune", str(path), "--keep", OTHER.digest[:8], "--yes")
    assert answer["deleted"] == [str(path / NAMESPACE.digest / "engine-0")]
    store = open_store(path, namespace=OTHER, **ROOMY)
    assert value("prune", str(path), "--all", "--yes") == {"deleted": [], "bytes": 0}
    assert all(loaded(store, range(5)))
    store.close()


def test_prune_by_age(path: Path) -> None:
    assert value("prune", str(path), "--older-than", "1h", "--yes")["deleted"] == []
    for file in (path / OTHER.digest / "engine-0").iterdir():
        os.utime(file, (1e9, 1e9))
    answer = value("prune", str(path), "--older-than", "1h", "--yes")
    assert answer["deleted"] == [str(path / OTHER.digest / "engine-0")]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("prune",), "say what to delete"),
        (("prune", "--all", "--keep", "abcdef"), "exclude each other"),
        (("prune", "--keep", "abcdef0"), "is not there"),
        (("prune", "--keep", "ab"), "is too short"),
        (("prune", "--older-than", "7"), "is not a time"),
    ],
)
def test_a_wrong_prune_is_refused_and_deletes_nothing(
    path: Path, args: tuple[str, ...], text: str
) -> None:
    done = call(args[0], str(path), *args[1:], "--yes")
    assert isinstance(done.exception, ConfigError) and text in str(done.exception)
    assert len(value("inspect", str(path))["namespaces"]) == 2


def test_a_redis_server_is_inspected_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTKV_REDIS_PASSWORD", "a-secret")
    with running(tmp_path, requirepass="a-secret") as server:
        for namespace in (redis_rig.NAMESPACE, OTHER):
            with redis_rig.open_store(
                server.url, namespace=namespace, password="a-secret"
            ) as store:
                assert all(store.store(redis_rig.entries(range(3))))
        (one, _) = value("inspect", server.url)["namespaces"]
        assert one["entries"] == 3 and one["engines"] is None
        assert value("stats", server.url)["entries"] == 6
        assert OTHER.digest[:16] in call("inspect", server.url).stdout
        answer = value("prune", server.url, "--keep", OTHER.digest, "--yes")
        assert answer["deleted"] == [redis_rig.NAMESPACE.digest]
        (left,) = value("inspect", server.url)["namespaces"]
        assert left["namespace"] == OTHER.digest


def test_a_server_that_is_not_there_is_one_line_and_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentkv", "store", "inspect", "redis://127.0.0.1:1"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    done = call("inspect", "redis://user:hunter2@127.0.0.1:1")
    assert isinstance(done.exception, ConfigError)
    assert "hunter2" not in str(done.exception)


def test_arguments_are_read() -> None:
    assert [parse_duration("--x", text) for text in ("90s", "1.5h", "7d")] == [90, 5400, 604800]
    assert is_url("rediss://h") and is_url("redis+cluster://h") and not is_url("/a:/b")
    assert resolve_names(["abcdef"], ["abcdef12", "fedcba"]) == {"abcdef12"}
    with pytest.raises(ConfigError, match="fits several"):
        resolve_names(["abcdef"], ["abcdef12", "abcdef34"])
