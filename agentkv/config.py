"""The settings of agentkv: one frozen tree, one parser.

What: the pydantic tree, and the functions that turn a user's mapping into it and into what vLLM
needs.
Why: a slip in a setting must stop the start with one line, and all processes must see one set.
Where: the user's keys are the top level of vLLM's `kv_connector_extra_config`, or a YAML/JSON file.
The process that builds vLLM's config resolves them once (`resolve_extra_config`); all others read
the result (`config_from_extra`).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from agentkv.config_admission import AdmissionConfig
from agentkv.config_fields import (
    Chance,
    Count,
    CountOrAuto,
    Fraction,
    NotNegative,
    Seconds,
    Section,
    Share,
    Size,
    SizeOrAuto,
)
from agentkv.config_tiers import LMCacheConfig, RedisConfig, SsdConfig, usable_directory
from agentkv.config_values import AUTO, MIN_SIZE_BYTES, describe_error, format_size
from agentkv.errors import ConfigError

EXTRA_CONFIG: Final = "kv_connector_extra_config."
"""vLLM's name for a connector's own settings; a message about one of them starts with it."""

GIB: Final = 1 << 30

# Keys of vLLM's native offloading that agentkv sets itself, and where the user's wish belongs.
OWNED_OFFLOADING_KEYS: Final[Mapping[str, str]] = {
    "agentkv": "write its keys at the top level",
    "cache_policy_module_path": "agentkv brings its own",
    "cpu_bytes_to_use": "set dram.size_bytes instead",
    "eviction_policy": "agentkv brings its own; set policy to choose what happens to a pause",
    "offload_prompt_only": "set store_decode_blocks instead",
    "spec_module_path": "agentkv brings its own",
    "spec_name": "agentkv brings its own",
}

PolicyName = Literal[
    "expected_cost",
    "expected_cost_nopredict",
    "break_even",
    "always_hold",
    "always_swap",
    "always_recompute",
    "lru",
    "fixed_ttl",
    "infercept",
    "continuum",
    "thunderagent",
    "progress_ttl",
]


class DramConfig(Section):
    """The DRAM tier, one per engine (with data parallelism: one per rank)."""

    size_bytes: SizeOrAuto = AUTO
    """DRAM for swapped KV: a size such as "32GiB", or "auto"."""

    auto_fraction: Fraction = 0.5
    """With "auto": the part of the free memory to take."""

    auto_max_bytes: Size = 64 * GIB
    """With "auto": never take more than this."""

    exclusive: bool = True
    """When DRAM is full, drop what the GPU pool has too, and copy it out again before it goes."""

    @model_validator(mode="after")
    def _refuse_contradiction(self) -> DramConfig:
        if self.size_bytes == AUTO:
            return self
        for name in ("auto_fraction", "auto_max_bytes"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} has no effect when size_bytes is given; remove one of the two"
                )
        return self


class HoldConfig(Section):
    """Limits on what pauses may keep in the GPU pool."""

    pool_fraction: Fraction = 0.9
    """Holds together never claim more than this part of the GPU pool."""

    lease_s: Seconds = 600.0
    """A hold ends after this long: the pause is then swapped, or recomputed."""


class PrefetchConfig(Section):
    """Bringing a paused session's KV back to the GPU pool before its next turn."""

    enabled: bool = True
    """Fetch from DRAM without a request; off: a turn loads when it has arrived."""

    reserve_fraction: Share = 0.05
    """Part of the GPU pool that stays empty for new requests when idle room is filled."""

    max_in_flight_bytes: Size = GIB
    """KV on its way at once: a turn that needs a load now waits for no more than this."""


class SessionsConfig(Section):
    """How sessions are told apart and forgotten."""

    max_sessions: Count = 100_000
    """Sessions tracked at once; beyond it the one idle longest is forgotten."""

    infer_from_prefix: bool = True
    """Recognise a session that sends no id by its growing prompt."""

    abandon_after_s: Seconds = 3600.0
    """A pause longer than this counts as the end of the session."""


class PricesConfig(Section):
    """What memory and waiting cost, relative to each other."""

    dram_over_hbm: NotNegative = 0.05
    """Price of a byte held in DRAM for a second over that of a contended byte in GPU memory."""

    ssd_over_hbm: NotNegative = 0.001
    """The same for a byte on the SSD."""

    remote_over_hbm: NotNegative = 0.01
    """The same for a byte in Redis or LMCache."""

    stall_s: NotNegative = 0.0
    """Seconds added to the cost of every swap, for what a transfer does to other requests."""


class PredictConfig(Section):
    """What is learned of how long tools take."""

    state_path: Path | None = None
    """Read at start and written when the engine stops, to know the waits seen before."""


class LedgerConfig(Section):
    """The record of every decision and of what came of it."""

    path: Path | None = None
    """Append each decision to this file as a line of JSON; none by default."""

    ring_size: Count = 4096
    """Decisions kept in memory."""


class AgentKVConfig(Section):
    """Everything a user can set."""

    dram: DramConfig = DramConfig()
    """The DRAM tier."""

    ssd: SsdConfig = SsdConfig()
    """The SSD tier below DRAM: off unless it has a path."""

    redis: RedisConfig = RedisConfig()
    """The Redis tier below DRAM: off unless it has a URL."""

    lmcache: LMCacheConfig = LMCacheConfig()
    """The LMCache tier below DRAM: off unless it has a URL."""

    park_after_s: NotNegative = 60.0
    """A pause that will probably last longer is also written to a tier below DRAM at once."""

    returns_elsewhere: Chance = 0.0
    """How likely a session's next turn comes to another engine that shares Redis or LMCache."""

    keep_tiers_on_reset: bool = False
    """Keep what lies below DRAM when vLLM resets its caches; not if weights change in place."""

    store_decode_blocks: bool = True
    """Store generated tokens too, not just the prompt: the next turn's prompt begins with them."""

    policy: PolicyName = "expected_cost"
    """What becomes of the KV of a pause: expected_cost (the cheapest of hold, swap, recompute),
    always_hold, always_swap, always_recompute; to compare with: break_even,
    expected_cost_nopredict, lru, fixed_ttl, infercept, continuum, thunderagent, progress_ttl."""

    min_load_tokens: CountOrAuto = AUTO
    """A DRAM hit shorter than this is recomputed, not loaded; "auto" measures where that pays."""

    load_timeout_s: Seconds = 5.0
    """A turn waits this long for KV that is being copied, then it computes."""

    protect_arrived_turns: bool = True
    """Evict the KV of a turn that has arrived and waits for a slot only after all other KV."""

    hold: HoldConfig = HoldConfig()
    """Limits on holds."""

    prefetch: PrefetchConfig = PrefetchConfig()
    """Bringing KV back before the turn arrives."""

    admission: AdmissionConfig = AdmissionConfig()
    """Who may run while much is computed again."""

    sessions: SessionsConfig = SessionsConfig()
    """How sessions are told apart and forgotten."""

    prices: PricesConfig = PricesConfig()
    """What memory and waiting cost."""

    predict: PredictConfig = PredictConfig()
    """How long tools take."""

    ledger: LedgerConfig = LedgerConfig()
    """The record of decisions."""

    copy_threads: Count = 2
    """Threads that copy KV on the CPU platform; GPUs copy by themselves."""

    offloading: dict[str, Any] = Field(default={})
    """Passed unchanged to vLLM's native offloading, for experts."""

    @model_validator(mode="after")
    def _refuse_owned_keys(self) -> AgentKVConfig:
        for key in self.offloading:
            if key in OWNED_OFFLOADING_KEYS:
                raise ValueError(f"offloading.{key}: set by agentkv; {OWNED_OFFLOADING_KEYS[key]}")
        return self


def parse_config(mapping: object, *, where: str = EXTRA_CONFIG) -> AgentKVConfig:
    """Validate the user's keys; `where` is put before the key path in a message.

    Raises ConfigError with one line: where, what is wrong, the nearest valid key or value.
    """
    if not isinstance(mapping, Mapping):
        found = "a list" if isinstance(mapping, list) else type(mapping).__name__
        raise ConfigError(f"{where.rstrip('.: ')}: must be a mapping of keys, is {found}")
    for key, advice in OWNED_OFFLOADING_KEYS.items():
        if key in mapping:
            raise ConfigError(f"{where}{key}: set by agentkv; {advice}")
    try:
        return AgentKVConfig.model_validate(dict(mapping))
    except ValidationError as error:
        raise ConfigError(where + describe_error(AgentKVConfig, error)) from None


def load_config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and validate a YAML or JSON file of the user's keys; returns them as written.

    Raises ConfigError when the file is missing, is not YAML, or holds a wrong key.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        content = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {_syntax_problem(error)}") from None
    content = {} if content is None else content
    parse_config(content, where=f"{path}: ")
    return dict(content)


def resolve_extra_config(
    user_extra: Mapping[str, Any], *, free_memory: Callable[[], int]
) -> dict[str, Any]:
    """Validate the user's keys and return the extra config that vLLM's offloading and agentkv read.

    `free_memory` returns the bytes that the DRAM tier may use. Idempotent: its own output comes
    back equal, without another look at the machine, so that workers see the first one's number.
    Raises ConfigError, also for what this machine cannot do (memory, a ledger not writable).
    """
    config = config_from_extra(user_extra)
    if not is_resolved(user_extra):
        size_bytes = _dram_bytes(config.dram, free_memory())
        dram = DramConfig(size_bytes=size_bytes, exclusive=config.dram.exclusive)
        path = _writable(config.ledger.path, "ledger.path")
        ledger = config.ledger.model_copy(update={"path": path})
        path = _writable(config.predict.state_path, "predict.state_path", is_made=False)
        predict = config.predict.model_copy(update={"state_path": path})
        ssd = config.ssd
        if ssd.path is not None:
            path = usable_directory(ssd.path, key=f"{EXTRA_CONFIG}ssd.path")
            ssd = ssd.model_copy(update={"path": path})
        parts = {"dram": dram, "ledger": ledger, "predict": predict, "ssd": ssd}
        config = config.model_copy(update=parts)
    return {
        "agentkv": config.model_dump(mode="json"),
        "spec_name": "AgentKVSpec",
        "spec_module_path": "agentkv.connectors.spec",
        "cpu_bytes_to_use": config.dram.size_bytes,
        "offload_prompt_only": not config.store_decode_blocks,
        "self_describing_kv_events": True,  # Read by vLLM only where it publishes KV events.
        "eviction_policy": "AgentKVCachePolicy",
        "cache_policy_module_path": "agentkv.connectors.cache_policy",
        **config.offloading,
    }


def is_resolved(extra: Mapping[str, Any]) -> bool:
    """Whether the mapping is the output of `resolve_extra_config`."""
    return "agentkv" in extra and "spec_name" in extra


def config_from_extra(extra: Mapping[str, Any]) -> AgentKVConfig:
    """Read the settings from a resolved or an unresolved mapping. Raises ConfigError."""
    return parse_config(extra["agentkv"] if is_resolved(extra) else extra)


def _dram_bytes(dram: DramConfig, free_bytes: int) -> int:
    """The tier's size on a machine with so much free memory; whole MiB when chosen by us."""
    if isinstance(dram.size_bytes, int):
        if dram.size_bytes > free_bytes:
            raise ConfigError(
                f"{EXTRA_CONFIG}dram.size_bytes: {format_size(dram.size_bytes)} is more than the "
                f"{format_size(free_bytes)} free for one engine (the least of memory, container "
                'limit and /dev/shm); take less, or "auto"'
            )
        return dram.size_bytes
    wanted = min(int(free_bytes * dram.auto_fraction), dram.auto_max_bytes)
    if wanted < MIN_SIZE_BYTES:
        raise ConfigError(
            f"{EXTRA_CONFIG}dram.size_bytes: auto finds only {format_size(free_bytes)} for one "
            "engine (the least of memory, container limit and /dev/shm, less what vLLM takes for "
            "itself); write a size, or give vLLM less"
        )
    return wanted - wanted % MIN_SIZE_BYTES


def _writable(path: Path | None, key: str, *, is_made: bool = True) -> Path | None:
    """A file's absolute path, tried once: a wrong one stops the start, not the first pause."""
    if path is None:
        return None
    path = path.expanduser().absolute()
    where = f"{EXTRA_CONFIG}{key}"
    if not path.parent.is_dir():
        raise ConfigError(f"{where}: directory {path.parent} does not exist; create it first")
    try:
        if is_made:
            path.open("ab").close()
        elif path.is_dir() or not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "no file can be made there")
    except OSError as error:
        raise ConfigError(f"{where}: cannot write {path}: {error.strerror}") from None
    return path


def _syntax_problem(error: yaml.YAMLError | json.JSONDecodeError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}: not valid JSON: {error.msg}"
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    return f"{where}not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}"
