"""The settings of the tiers below DRAM.

Why no password among them: vLLM prints a connector's settings at start, and hands them from process
to process. They name where the password is found.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from agentkv.config_fields import Count, Seconds, Section, Size
from agentkv.errors import ConfigError

GIB = 1 << 30


class SsdConfig(Section):
    """KV on a local disk, one directory for each engine under `path`."""

    path: Path | None = None
    """Directory for paused KV on a local disk; none by default: no SSD tier."""

    size_bytes: Size = 64 * GIB
    """Disk space for it, one engine's: a size such as "500GiB"."""

    min_free_bytes: Size | None = None
    """Disk space that stays free for others; by default 2 % of the disk, at least 1 GiB."""

    max_write_bytes_per_s: Size | None = None
    """Never write more than this in the long run, to spare the disk; no limit by default."""

    threads: Count = 4
    """Threads that read and write."""

    @model_validator(mode="after")
    def _refuse_contradiction(self) -> SsdConfig:
        refuse_without(self, "path", "ssd.path")
        return self

    @property
    def is_on(self) -> bool:
        return self.path is not None


class RedisConfig(Section):
    """KV in a Redis or Valkey server, which other engines of the same model may share."""

    url: str | None = None
    """Server for paused KV, such as redis://host:6379/0 or rediss://…; none: no Redis tier."""

    username: str | None = None
    """User of the server's access list."""

    password_env: str = "AGENTKV_REDIS_PASSWORD"
    """Environment variable that holds the password; it is never a setting."""

    ca_file: Path | None = None
    """Certificate authority for rediss://, if it is not one of the system's."""

    cert_file: Path | None = None
    """Client certificate for rediss://."""

    key_file: Path | None = None
    """Key of the client certificate."""

    ttl_s: Seconds = 86400.0
    """The server forgets what nobody used for this long."""

    timeout_s: Seconds = 2.0
    """A server that makes no progress for this long is left alone for a while."""

    connections: Count = 4
    """Connections for KV, and threads that use them."""

    @field_validator("url")
    @classmethod
    def _refuse_password(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            has_password = parts.password is not None or "password=" in parts.query
        except ValueError:
            raise ValueError("is not a URL; write one such as redis://host:6379/0") from None
        if has_password:
            raise ValueError(
                "must not hold the password, for settings are printed; put it into the environment "
                "variable that redis.password_env names"
            )
        return url

    @model_validator(mode="after")
    def _refuse_contradiction(self) -> RedisConfig:
        refuse_without(self, "url", "redis.url")
        return self

    @property
    def is_on(self) -> bool:
        return self.url is not None


class LMCacheConfig(Section):
    """KV in an LMCache server (`lmcache_server HOST PORT`), which other engines may share."""

    url: str | None = None
    """LMCache server for paused KV, such as lm://host:65432; none by default: no such tier."""

    capacity_bytes: Size | None = None
    """Never store more there: the server itself has no limit and evicts nothing."""

    timeout_s: Seconds = 2.0
    """A server that makes no progress for this long is left alone for a while."""

    connections: Count = 4
    """Connections for KV, and threads that use them."""

    @field_validator("url")
    @classmethod
    def _refuse_other_urls(cls, url: str | None) -> str | None:
        if url is not None:
            host_and_port(url)
        return url

    @model_validator(mode="after")
    def _refuse_contradiction(self) -> LMCacheConfig:
        refuse_without(self, "url", "lmcache.url")
        return self

    @property
    def is_on(self) -> bool:
        return self.url is not None


def host_and_port(url: str) -> tuple[str, int]:
    """Of lm://host:port. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "lm" or not parts.hostname or parts.port is None:
        raise ValueError("is not the URL of an LMCache server; write one such as lm://host:65432")
    return parts.hostname, parts.port


def refuse_without(section: Section, needed: str, name: str) -> None:
    """Raises ValueError if other settings of the section were changed without the needed one."""
    fields = type(section).model_fields
    changed = sorted(
        field
        for field in section.model_fields_set - {needed}
        if getattr(section, field) != fields[field].default
    )
    if changed and getattr(section, needed) is None:
        raise ValueError(f"{changed[0]} has no effect without {name}; give it, too")


def usable_directory(path: Path, *, key: str) -> Path:
    """The directory's absolute path; made if only it is missing, not what it lies in.

    So a disk that is not mounted stops the start. Raises ConfigError.
    """
    path = path.expanduser().absolute()
    if not path.parent.is_dir():
        raise ConfigError(f"{key}: directory {path.parent} does not exist; is the disk mounted?")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: cannot make directory {path}: {error.strerror}") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: no right to write into {path}")
    return path
