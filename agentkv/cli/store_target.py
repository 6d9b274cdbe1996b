"""Reads what the arguments of `agentkv store` name: a directory or a server, times, namespaces."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentkv.config import load_config_file, parse_config
from agentkv.config_tiers import RedisConfig
from agentkv.errors import ConfigError
from agentkv.tiers.redis.url import RedisAccess

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MIN_NAME_CHARS = 6


def is_url(where: str) -> bool:
    """Whether it names a server. A path loses one of two slashes, so one is enough."""
    return re.match(r"[a-z+]+:/", where) is not None


def redis_access(url: str, config_file: str | None) -> RedisAccess:
    """The login of the settings file, or the defaults'. Refuses a password in the URL.

    Raises ConfigError.
    """
    try:
        config = RedisConfig(url=url)
    except ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error", "is not a URL")
        raise ConfigError(f"redis url: {reason}") from None
    if config_file is not None:
        config = parse_config(load_config_file(config_file), where=f"{config_file}: ").redis
    return RedisAccess(
        username=config.username,
        password=os.environ.get(config.password_env),
        ca_file=_text(config.ca_file),
        cert_file=_text(config.cert_file),
        key_file=_text(config.key_file),
    )


def parse_duration(option: str, text: str) -> float:
    """Seconds: "90s", "30m", "12h", "7d", "2w". Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    if match is None:
        raise ConfigError(f"{option} {text}: is not a time; write one such as 12h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def resolve_names(names: Sequence[str], known: Sequence[str]) -> set[str]:
    """The namespaces meant. Raises ConfigError for one that is not there, or too short to tell.

    A typing error would otherwise delete what is to stay.
    """
    found: set[str] = set()
    for name in names:
        matches = [digest for digest in known if digest.startswith(name)]
        if len(name) < _MIN_NAME_CHARS or len(matches) != 1:
            what = "fits several" if len(matches) > 1 else "is not there"
            if len(name) < _MIN_NAME_CHARS:
                what = f"is too short; give {_MIN_NAME_CHARS} letters or more"
            raise ConfigError(f"--keep {name}: {what}; `agentkv store inspect` lists them")
        found.add(matches[0])
    return found


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser())
