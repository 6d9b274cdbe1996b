"""What a run of `agentkv bench store` is made of; all of it ends up in its JSON.

Where: the command line makes it, `run` follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agentkv.config import AgentKVConfig
from agentkv.config_fields import Size
from agentkv.config_tiers import RedisConfig, SsdConfig
from agentkv.config_values import format_size
from agentkv.errors import ConfigError

TIERS = ("dram", "ssd", "redis")
PAGE_BYTES = 4096
MIN_BLOCK_BYTES = 16 * PAGE_BYTES
MIN_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Threads and connections are those of the settings' defaults."""

    tiers: tuple[str, ...] = TIERS
    path: Path | None = None
    """Directory for the SSD's files; None: a temporary one in the current directory."""

    redis_url: str | None = None
    """None: a server of our own."""

    redis_username: str | None = None
    password_env: str = RedisConfig().password_env
    size_bytes: int = 256 << 20
    """Moved each way, by each mover, in each round; rounded down to whole blocks."""

    block_sizes_bytes: tuple[int, ...] = (512 << 10, 2 << 20)
    num_rounds: int = 9
    seed: int = 0
    copy_threads: int = int(AgentKVConfig.model_fields["copy_threads"].default)
    ssd_threads: int = SsdConfig().threads
    redis_connections: int = RedisConfig().connections

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for size_bytes in self.block_sizes_bytes:
            if size_bytes < MIN_BLOCK_BYTES or size_bytes % PAGE_BYTES:
                raise ConfigError(
                    f"--block-size {format_size(size_bytes)}: must be whole pages of "
                    f"{PAGE_BYTES} bytes, and {format_size(MIN_BLOCK_BYTES)} or more"
                )
            if self.size_bytes < MIN_BLOCKS * size_bytes:
                raise ConfigError(
                    f"--size {format_size(self.size_bytes)}: too small for {MIN_BLOCKS} blocks; "
                    f"give it at least {format_size(MIN_BLOCKS * size_bytes)}"
                )
        _refuse_password(self.redis_url)

    def num_blocks(self, block_bytes: int) -> int:
        return self.size_bytes // block_bytes


def parse_tiers(text: str) -> tuple[str, ...]:
    """The tiers of `--tiers`, in their own order. Raises ConfigError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TIERS:
            raise ConfigError(f"--tiers {name}: unknown; choose from {', '.join(TIERS)}")
    if not names:
        raise ConfigError(f"--tiers: none is named; choose from {', '.join(TIERS)}")
    return tuple(tier for tier in TIERS if tier in names)


def parse_bytes(option: str, text: str) -> int:
    """A size such as "512KiB" on the command line. Raises ConfigError."""
    number, _, unit = text.strip().partition("K")
    # The settings know no size below 1 MiB: there it is surely a missing unit.
    if unit in ("iB", "B") and number.isascii() and number.isdigit():
        return int(number) * (1024 if unit == "iB" else 1000)
    try:
        return TypeAdapter(Size).validate_python(text)
    except ValidationError as error:
        raise ConfigError(f"{option}: {_reason(error)}") from None


def parse_block_sizes(texts: Sequence[str]) -> tuple[int, ...]:
    """Each `--block-size`, once."""
    return tuple(dict.fromkeys(parse_bytes("--block-size", text) for text in texts))


def _refuse_password(url: str | None) -> None:
    """As the setting does: command lines are seen by others."""
    try:
        RedisConfig(url=url)
    except ValidationError as error:
        raise ConfigError(f"--redis-url: {_reason(error)}") from None


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return str(first.get("ctx", {}).get("error", first["msg"]))
