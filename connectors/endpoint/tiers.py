"""How full the tiers are, from the numbers that the engines send to `/metrics` anyway.

Why from there: they arrive with every step's statistics, so that nobody has to ask an engine, and
an idle one is not woken. Where: added to the engines' own state by `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from agentkv.config import config_from_extra
from agentkv.metrics import TIER_AVAILABLE, TIER_BYTES

TierState = dict[str, Any]


class Tiers:
    """Sizes from the settings, use from the gauges of this process. Owned by the event loop."""

    def __init__(
        self, sizes_bytes: Mapping[str, int | None], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._sizes_bytes = dict(sizes_bytes)
        self._registry = registry

    def of_engine(self, engine_index: int) -> dict[str, TierState]:
        """By name, DRAM first: `used_bytes`, `size_bytes` (None: not known), `is_available`.

        `used_bytes` is None until the engine has sent a number.
        """
        used = self._read(TIER_BYTES.name, engine_index)
        available = self._read(TIER_AVAILABLE.name, engine_index)
        return {
            name: {
                "used_bytes": None if name not in used else int(used[name]),
                "size_bytes": size_bytes,
                "is_available": bool(available.get(name, 1.0)),
            }
            for name, size_bytes in self._sizes_bytes.items()
        }

    def _read(self, metric: str, engine_index: int) -> dict[str, float]:
        """The gauge of each tier."""
        found = self._registry.restricted_registry([metric]).collect()
        return {
            sample.labels["tier"]: sample.value
            for family in found
            for sample in family.samples
            if sample.labels.get("engine") == str(engine_index)
        }


def tier_sizes(extra: Mapping[str, Any]) -> dict[str, int | None]:
    """The tiers of one engine that are set up by agentkv's settings, and their sizes.

    Raises ConfigError for settings that no engine would have started with.
    """
    config = config_from_extra(extra)
    dram_bytes = extra.get("cpu_bytes_to_use", config.dram.size_bytes)
    sizes: dict[str, int | None] = {"dram": dram_bytes if isinstance(dram_bytes, int) else None}
    if config.ssd.is_on:
        sizes["ssd"] = config.ssd.size_bytes
    if config.redis.is_on:
        sizes["redis"] = None
    if config.lmcache.is_on:
        sizes["lmcache"] = config.lmcache.capacity_bytes
    return sizes
