"""The numbers a Redis tier works with, checked."""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.errors import ConfigError

_MIN_VALUE_BYTES = 1024
_MAX_VALUE_BYTES = 512 << 20  # Redis's own limit for one value


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """As the store's constructor has them; raises `ConfigError`."""

    ttl_s: float
    value_bytes: int
    connect_timeout_s: float
    timeout_s: float
    call_timeout_s: float
    num_connections: int
    max_in_flight_bytes: int
    first_retry_s: float
    max_retry_s: float

    def __post_init__(self) -> None:
        for name in ("ttl_s", "connect_timeout_s", "timeout_s", "call_timeout_s", "first_retry_s"):
            if not 0.001 <= getattr(self, name) < 1e9:
                raise ConfigError(f"redis {name}: {getattr(self, name)} s; write 0.001 or more")
        for name in ("num_connections", "max_in_flight_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"redis {name}: {getattr(self, name)}; write 1 or more")
        if not _MIN_VALUE_BYTES <= self.value_bytes <= _MAX_VALUE_BYTES:
            raise ConfigError(
                f"redis value_bytes: {self.value_bytes}; "
                f"write {_MIN_VALUE_BYTES} to {_MAX_VALUE_BYTES}"
            )
        if self.max_retry_s < self.first_retry_s:
            raise ConfigError(f"redis max_retry_s: below first_retry_s ({self.first_retry_s} s)")
