"""What a run of `agentkv bench replay` is made of; all of it ends up in its JSON.

What: the systems that are compared, by the names that users write, and the sizes of the run.
Where: the command line makes it, `replay_run` follows it.

    stock        prefix caching alone           native      vLLM's own DRAM offloading (LRU)
    infinite     a pool that holds everything    agentkv     ours
    agentkv:POLICY@CLIENT+KEY=VALUE              ours with a policy, a kind of client, a setting
    NAME=URL     (--url) a server that runs already
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from agentkv.config import AgentKVConfig, parse_config
from agentkv.demo.agents import ClientKind
from agentkv.errors import ConfigError
from agentkv.policy import POLICIES

DEFAULT_SYSTEMS = "stock,native,agentkv,infinite"
_URL = re.compile(r"https?://[^\s/]+.*")


class Kind(str, Enum):
    STOCK = "stock"
    NATIVE = "native"
    AGENTKV = "agentkv"
    INFINITE = "infinite"
    URL = "url"


@dataclass(frozen=True, slots=True)
class System:
    """One contender. `name` as the user wrote it; `model`: the name that a URL's server knows."""

    name: str
    kind: Kind
    policy: str | None = None
    client: ClientKind = ClientKind.PLAIN
    url: str | None = None
    model: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of agentkv for this system alone."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Sizes in tokens and seconds. `max_wait_s` None: waits are played as they were recorded.

    `server_args`: options of vLLM for every server that is started, whatever its system.
    `is_one_by_one`: a server runs alone, for machines that have no memory for all at once.
    """

    systems: tuple[System, ...]
    traces: tuple[Path, ...] = ()
    oversubscription: tuple[float, ...] = (2.0,)
    dram: tuple[float, ...] = (1.0,)
    num_agents: int = 12
    num_sessions: int = 24
    num_seeds: int = 3
    begin_within_s: float = 8.0
    """The agents begin one after the other within this time: nobody's do all at once."""

    max_wait_s: float | None = None
    model: str = "tiny"
    max_context_tokens: int = 5_000
    max_turns: int = 16
    answer_tokens: int = 8
    block_size: int = 32
    max_running: int = 8
    server_args: tuple[str, ...] = ()
    is_calibrated: bool = True
    is_one_by_one: bool = False
    lock: Path | None = None
    keep_logs: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Settings of agentkv for our systems, beside policy and DRAM."""


def parse_systems(text: str, urls: Sequence[str], client: ClientKind) -> tuple[System, ...]:
    """The systems of `--systems` and `--url`, each once. Raises ConfigError."""
    named = [_system(part.strip(), client) for part in text.split(",") if part.strip()]
    found = (*named, *(_remote(url) for url in urls))
    if not found:
        raise ConfigError(f"--systems: none is named; give some, as {DEFAULT_SYSTEMS}")
    names = [system.name for system in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--systems {name}: named twice; name each system once")
    return found


def _system(text: str, client: ClientKind) -> System:
    rest, *pairs = text.split("+")
    head, at, client_name = rest.partition("@")
    name, colon, policy = head.partition(":")
    if name not in (kinds := [kind.value for kind in Kind if kind is not Kind.URL]):
        raise ConfigError(f"--systems {text}: unknown; choose from {', '.join(kinds)}")
    if name != Kind.AGENTKV.value:
        if colon or at or pairs:
            raise ConfigError(f"--systems {text}: only agentkv has policy, client and settings")
        return System(text, Kind(name))
    if colon and policy not in POLICIES:
        raise ConfigError(f"--systems {text}: no such policy; choose from {', '.join(POLICIES)}")
    if at and client_name not in (known := [kind.value for kind in ClientKind]):
        raise ConfigError(f"--systems {text}: no such client; choose from {', '.join(known)}")
    return System(
        text,
        Kind.AGENTKV,
        policy if colon else AgentKVConfig().policy,
        ClientKind(client_name) if at else client,
        config=_settings_of(text, pairs),
    )


def _settings_of(text: str, pairs: Sequence[str]) -> dict[str, Any]:
    """`prefetch.enabled=false` as {"prefetch": {"enabled": False}}. Raises ConfigError."""
    config: dict[str, Any] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--systems {text}: {pair}: give KEY=VALUE, as min_load_tokens=1")
        *sections, key = path.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = yaml.safe_load(value)
    parse_config(config, where=f"--systems {text}: ")
    return config


def _remote(text: str) -> System:
    """NAME=URL or NAME=URL#MODEL; the client sends the header that names the session."""
    name, equals, rest = text.partition("=")
    url, _, model = rest.partition("#")
    if not (name and equals and _URL.fullmatch(url)):
        raise ConfigError(f"--url {text}: give NAME=URL, as mine=http://localhost:8000")
    bare = url.rstrip("/").removesuffix("/v1")
    return System(name, Kind.URL, client=ClientKind.HEADER, url=bare, model=model or None)


def parse_numbers(option: str, text: str, *, may_be_zero: bool = False) -> tuple[float, ...]:
    """Numbers with commas between, each once. Raises ConfigError."""
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers with commas between, as 1,2,4") from None
    for value in values:
        if not (0 < value < 1e6 or (value == 0 and may_be_zero)):
            raise ConfigError(f"{option} {text}: {value:g} is out of range; give it as 1,2,4")
    return values
