"""How each system's server is started: the same vLLM, the same model, another KV connector.

Where: between the settings and `agentkv.demo.servers`. The baselines load no plugin at all, so that
nothing of ours is in them but, where there is no GPU, the copies of native offloading
(`connectors/native_spec.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.bench.replay_models import BenchModel
from agentkv.bench.replay_regimes import MIN_DRAM_BYTES, Regime
from agentkv.bench.replay_settings import Kind, ReplaySettings, System
from agentkv.demo.servers import ServerSpec

NATIVE_SPEC = {
    "spec_name": "NativeOffloadingSpec",
    "spec_module_path": "agentkv.connectors.native_spec",
}
NO_PLUGINS = {"VLLM_PLUGINS": ""}


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers of a run share. `all_tokens`: room for every session at the same time."""

    settings: ReplaySettings
    model: BenchModel
    folder: Path
    all_tokens: int
    longest_tokens: int
    seed: int

    @property
    def max_model_len(self) -> int:
        """The longest request, rounded up to whole blocks."""
        block_size = self.settings.block_size
        return -(-self.longest_tokens // block_size) * block_size

    def spec(self, name: str, pool_tokens: int, **fields: Any) -> ServerSpec:
        """A server of this run's model with a pool of so many tokens."""
        return ServerSpec(
            name=name,
            model=self.model.folder,
            # One more than needed, because vLLM keeps one for itself.
            num_gpu_blocks=-(-pool_tokens // self.settings.block_size) + 1,
            block_size=self.settings.block_size,
            seed=0,
            dtype="float32" if self.model.is_ours else "auto",
            is_eager=self.model.is_ours,
            extra_args=self.settings.server_args,
            **fields,
        )


def is_played(system: System, regime: Regime) -> bool:
    """Whether the system makes sense there: native offloading without DRAM is stock."""
    return not (system.kind is Kind.NATIVE and regime.dram_bytes == 0)


def play_key(system: System, regime: Regime) -> tuple[Any, ...]:
    """Equal for regimes that are the same to the system: one replay serves them all."""
    if system.kind is Kind.INFINITE:
        return (system.name,)
    if system.kind is Kind.STOCK:
        return (system.name, regime.pool_tokens)
    return (system.name, regime.pool_tokens, regime.dram_bytes)


def server_name(system: System, label: str | None, seed: int) -> str:
    """Of a system at a regime and seed, fit for the name of a file."""
    return re.sub(r"[^\w.]+", "_", f"{system.name}-{label}-{seed}")


def server_spec(system: System, regime: Regime, setup: Setup) -> ServerSpec:
    """For a system whose server is ours to start."""
    is_infinite = system.kind is Kind.INFINITE
    name = server_name(system, regime.label, setup.seed)
    return setup.spec(
        name,
        setup.all_tokens if is_infinite else regime.pool_tokens,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.settings.max_running,
        kv_transfer=_transfer(system, regime, setup, name),
        environment={} if system.kind is Kind.AGENTKV else NO_PLUGINS,
    )


def _transfer(system: System, regime: Regime, setup: Setup, name: str) -> Mapping[str, Any] | None:
    if system.kind is Kind.NATIVE:
        return native_transfer(regime.dram_bytes)
    if system.kind is not Kind.AGENTKV:
        return None
    dram = {"dram": {"size_bytes": max(regime.dram_bytes, MIN_DRAM_BYTES)}}
    config = merged(merged(setup.settings.extra, system.config), dram)
    config["policy"] = system.policy
    if setup.settings.keep_logs is not None:
        config["ledger"] = {"path": str(setup.folder / f"{name}.ledger.jsonl")}
    return {
        "kv_connector": "agentkv",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": config,
    }


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others put over them, section by section."""
    sections = {
        key: merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **sections}


def native_transfer(dram_bytes: int) -> Mapping[str, Any]:
    """vLLM's own offloading; our spec leaves it as it is where it can copy by itself."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": dram_bytes, **NATIVE_SPEC},
    }
