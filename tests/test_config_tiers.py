"""The settings of the tiers below DRAM: what is refused, and with which one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentkv.config import EXTRA_CONFIG, config_from_extra, parse_config, resolve_extra_config
from agentkv.config_tiers import host_and_port, usable_directory
from agentkv.errors import ConfigError

SECRET = "hunter2-s3cret"


def refusal(**mapping: Any) -> str:
    """The one line in which settings are refused, without where they are from."""
    with pytest.raises(ConfigError) as caught:
        parse_config(mapping)
    line = str(caught.value)
    assert line.startswith(EXTRA_CONFIG) and "\n" not in line
    return line.removeprefix(EXTRA_CONFIG)


def resolved(**mapping: Any) -> dict[str, Any]:
    return resolve_extra_config(mapping, free_memory=lambda: 1 << 30)


def test_there_is_no_tier_below_dram_unless_one_is_named() -> None:
    config = parse_config({})
    assert not (config.ssd.is_on or config.redis.is_on or config.lmcache.is_on)
    named = parse_config(
        {
            "ssd": {"path": "/kv"},
            "redis": {"url": "redis://host"},
            "lmcache": {"url": "lm://host:1"},
        }
    )
    assert named.ssd.is_on and named.redis.is_on and named.lmcache.is_on


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host:6379/0",
        f"redis://:{SECRET}@host",
        f"rediss://user:{SECRET}@host",
        f"redis://host/0?password={SECRET}",
        f"unix:///run/redis.sock?db=1&password={SECRET}",
        f"redis://[::1:{SECRET}",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    line = refusal(redis={"url": url})
    assert line.startswith("redis.url: ")
    assert SECRET not in line
    assert "redis.password_env" in line or "is not a URL" in line


def test_a_password_is_no_setting_and_not_repeated() -> None:
    line = refusal(redis={"url": "redis://host", "password": SECRET})
    assert line.startswith("redis.password: unknown key; did you mean redis.password_env?")
    assert SECRET not in line


def test_settings_that_are_printed_never_hold_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTKV_REDIS_PASSWORD", SECRET)
    extra = resolved(redis={"url": "redis://user@host:6379/0"})
    assert SECRET not in json.dumps(extra)
    assert SECRET not in repr(config_from_extra(extra))


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({"ssd": {"pth": "/kv"}}, "ssd.pth: unknown key; did you mean ssd.path?"),
        (
            {"ssd": {"size_byte": "1GiB"}},
            "ssd.size_byte: unknown key; did you mean ssd.size_bytes?",
        ),
        ({"redis": {"uri": "x"}}, "redis.uri: unknown key; did you mean redis.url?"),
        ({"redis": {"ttl": 1}}, "redis.ttl: unknown key; did you mean redis.ttl_s?"),
        (
            {"lmcache": {"timeout": 1}},
            "lmcache.timeout: unknown key; did you mean lmcache.timeout_s?",
        ),
        ({"rediss": {"url": "x"}}, "rediss: unknown key; did you mean redis?"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(
    mapping: dict[str, Any], line: str
) -> None:
    assert refusal(**mapping).startswith(line)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("ssd", "size_bytes", 0),
        ("ssd", "size_bytes", "-1GiB"),
        ("ssd", "size_bytes", "many"),
        ("ssd", "size_bytes", True),
        ("ssd", "max_write_bytes_per_s", -5),
        ("ssd", "threads", 0),
        ("redis", "timeout_s", 0),
        ("redis", "ttl_s", float("inf")),
        ("redis", "connections", 0),
        ("redis", "connections", True),
        ("lmcache", "timeout_s", "soon"),
        ("lmcache", "capacity_bytes", "x"),
    ],
)
def test_a_wrong_value_is_named(section: str, key: str, value: object) -> None:
    where = {"ssd": {"path": "/kv"}, "redis": {"url": "redis://h"}, "lmcache": {"url": "lm://h:1"}}
    assert refusal(**{section: {**where[section], key: value}}).startswith(f"{section}.{key}: ")


@pytest.mark.parametrize(
    ("section", "key", "value", "needed"),
    [
        ("ssd", "size_bytes", "1GiB", "ssd.path"),
        ("ssd", "threads", 8, "ssd.path"),
        ("ssd", "min_free_bytes", "1GiB", "ssd.path"),
        ("redis", "timeout_s", 1.0, "redis.url"),
        ("redis", "ca_file", "/ca.pem", "redis.url"),
        ("lmcache", "capacity_bytes", "1GiB", "lmcache.url"),
    ],
)
def test_settings_of_a_tier_that_is_not_named_are_a_contradiction(
    section: str, key: str, value: object, needed: str
) -> None:
    line = refusal(**{section: {key: value}})
    assert f"{key} has no effect without {needed}" in line


def test_defaults_written_out_are_no_contradiction() -> None:
    extra = resolved()
    assert config_from_extra(extra) == parse_config(
        {"dram": {"size_bytes": extra["cpu_bytes_to_use"]}}
    )


@pytest.mark.parametrize(
    "url", ["host:1", "lm://host", "lm://:1", "lm://", "http://h:1", "lm://h:x"]
)
def test_an_lmcache_url_must_name_host_and_port(url: str) -> None:
    assert refusal(lmcache={"url": url}).startswith("lmcache.url: ")


def test_host_and_port_of_an_lmcache_url() -> None:
    assert host_and_port("lm://host:65432") == ("host", 65432)
    assert host_and_port("lm://[::1]:1") == ("::1", 1)


# --- the SSD tier's directory ---


def test_a_directory_is_made_if_only_it_is_missing(tmp_path: Path) -> None:
    extra = resolved(ssd={"path": str(tmp_path / "kv")})
    assert (tmp_path / "kv").is_dir()
    assert config_from_extra(extra).ssd.path == tmp_path / "kv"
    assert resolved(ssd={"path": str(tmp_path / "kv")}) == extra, "and taken if it is there"


def test_a_disk_that_is_not_mounted_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "mnt" / "kv"
    with pytest.raises(ConfigError) as caught:
        resolved(ssd={"path": str(path)})
    assert str(caught.value) == (
        f"{EXTRA_CONFIG}ssd.path: directory {path.parent} does not exist; is the disk mounted?"
    )
    assert not path.parent.exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    with pytest.raises(ConfigError, match=r"ssd\.path: cannot make directory .*kv: File exists"):
        resolved(ssd={"path": str(tmp_path / "kv")})


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:  # Who may everything is only told so.
        monkeypatch.setattr(os, "access", lambda *_: False)
    (tmp_path / "kv").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match=r"x: no right to write into .*kv"):
        usable_directory(tmp_path / "kv", key="x")


def test_a_relative_path_and_a_home_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert usable_directory(Path("kv"), key="x") == tmp_path / "kv"
    assert usable_directory(Path("~/home-kv"), key="x") == tmp_path / "home-kv"


def test_what_was_resolved_is_read_again_without_the_directory(tmp_path: Path) -> None:
    """A worker on another machine must not fail for the scheduler's disk."""
    extra = resolved(ssd={"path": str(tmp_path / "kv")})
    (tmp_path / "kv").rmdir()
    again = resolve_extra_config(extra, free_memory=lambda: 0)
    assert again == extra and not (tmp_path / "kv").exists()
