"""Puts the scheduler side together from vLLM's config and what the offloading connector built."""

from __future__ import annotations

import functools
from pathlib import Path

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import OffloadingEvent, OffloadKey
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager

from agentkv.admission import ProgramAdmission
from agentkv.appraisal import Deps
from agentkv.clock import SystemClock
from agentkv.config import AgentKVConfig
from agentkv.controller import Controller
from agentkv.cost_model import CostModel, LinkSpeed, PrefillCurve
from agentkv.ledger import Ledger
from agentkv.metrics import Recorder
from agentkv.policy import POLICIES
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.predict.saved_state import read_state, write_state

from .arrived import ArrivedTurns
from .cache_policy import AgentKVCachePolicy
from .layout import Group, Layout
from .pause_spans import open_spans
from .scheduler_side import SchedulerSide
from .slow_tiers import open_tiers
from .tiering import AgentKVTieringManager
from .translate import footprint_of
from .whereabouts import Whereabouts

logger = init_logger("vllm.agentkv")

# Only until the first measurement, which is made before the engine serves.
_UNMEASURED_BYTES_PER_S = 8e9
# Prefixes kept for prefetches share much of what they hold: allow for more than fits.
_KEPT_PER_TOKEN = 2


def build_scheduler_side(
    config: AgentKVConfig,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    offloading: OffloadingConnectorScheduler,
    recorder: Recorder,
) -> SchedulerSide:
    """Wires controller, predictor, policy and ledger to the offloading connector's DRAM tier."""
    dram: AgentKVCachePolicy = offloading.manager.primary_tier._policy
    tokens_per_hash = int(offloading.config.tokens_per_hash)
    groups = tuple(_group(group, tokens_per_hash) for group in offloading.config.kv_group_configs)
    layout = Layout(groups, tokens_per_hash)
    manager: AgentKVTieringManager = offloading.manager
    manager.keeps_tiers_on_reset = config.keep_tiers_on_reset
    manager.attach(open_tiers(config, vllm_config, kv_cache_config, manager))
    whereabouts = Whereabouts(manager, layout, is_exclusive=config.dram.exclusive)
    deps = _deps(config, vllm_config, kv_cache_config, whereabouts, recorder)
    pool_blocks = int(kv_cache_config.num_blocks) - 1
    _state_capacity(config, offloading, pool_blocks)
    controller = Controller(
        config,
        deps,
        tokens_per_hash=tokens_per_hash,
        pool_blocks=layout.pool_hash_blocks(pool_blocks),
    )
    capacity_tokens = _capacity_tokens(offloading, layout, pool_blocks)
    side = SchedulerSide(
        controller,
        deps,
        manager=manager,
        whereabouts=whereabouts,
        drop_from_dram=functools.partial(_drop, offloading.manager.primary_tier),
        layout=layout,
        arrived=ArrivedTurns(dram, layout, recorder, is_protecting=config.protect_arrived_turns),
        config=config,
        max_kept_tokens=_KEPT_PER_TOKEN * capacity_tokens,
        admission=_admission(config, deps, controller, layout, capacity_tokens),
    )
    side.below.spans = open_spans(vllm_config, deps.ledger, offloading, side.faults)
    return side


def _admission(
    config: AgentKVConfig,
    deps: Deps,
    controller: Controller,
    layout: Layout,
    capacity_tokens: int,
) -> ProgramAdmission | None:
    if not config.admission.enabled:
        return None
    sessions = controller.sessions
    return ProgramAdmission(
        config.admission,
        deps.clock,
        deps.recorder,
        capacity_tokens=capacity_tokens,
        recompute_s=deps.costs.recompute_s,
        live_tokens=lambda: len(sessions.tree) * layout.tokens_per_hash,
        is_live=lambda key: sessions.get(key) is not None,
    )


def _deps(
    config: AgentKVConfig,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    whereabouts: Whereabouts,
    recorder: Recorder,
) -> Deps:
    clock = SystemClock()
    costs = CostModel(
        PrefillCurve(),
        LinkSpeed(_UNMEASURED_BYTES_PER_S),
        LinkSpeed(_UNMEASURED_BYTES_PER_S),
        max_step_tokens=int(vllm_config.scheduler_config.max_num_batched_tokens),
    )
    predictor, state_path = HierarchicalWaitPredictor(), config.predict.state_path
    if state_path is not None:
        state = read_state(state_path)
        if state is not None and predictor.load(state):
            logger.info("agentkv: %d waits of earlier runs are known", predictor.num_observed)
    return Deps(
        costs=costs,
        footprint=footprint_of(kv_cache_config),
        predictor=predictor,
        policy=POLICIES[config.policy](),
        ledger=Ledger(clock, ring_size=config.ledger.ring_size, path=config.ledger.path),
        recorder=recorder,
        clock=clock,
        locate=whereabouts.locate,
        tokens_by_tier=whereabouts.tokens_by_tier,
        at_close=functools.partial(_save, predictor, state_path),
    )


def _save(predictor: HierarchicalWaitPredictor, path: Path | None) -> None:
    if path is not None:
        write_state(path, predictor.dump())


def _capacity_tokens(
    offloading: OffloadingConnectorScheduler, layout: Layout, pool_blocks: int
) -> int:
    """Tokens whose KV fits in pool and DRAM together, at most."""
    per_chunk = max(group.per_chunk for group in layout.groups)
    num_chunks = int(offloading.manager.primary_tier._num_chunks)
    return (layout.pool_hash_blocks(pool_blocks) + num_chunks * per_chunk) * layout.tokens_per_hash


def _group(config: GroupOffloadConfig, tokens_per_hash: int) -> Group:
    window_chunks = config.sliding_window_size_in_chunks
    return Group(
        group_id=int(config.group_idx),
        per_block=config.tokens_per_block // tokens_per_hash,
        per_chunk=int(config.hashes_per_chunk),
        window=None if window_chunks is None else window_chunks * config.hashes_per_chunk,
    )


def _drop(primary: CPUPrimaryTierOffloadingManager, key: OffloadKey) -> bool:
    """Removes one idle block from the DRAM tier; False if a copy uses it just now."""
    chunk = primary._policy.get(key)
    if chunk is None:
        return True
    if chunk.ref_cnt != 0:
        return False
    primary._policy.remove(key)
    primary._num_evictable_cache_chunks -= 1
    primary._free_chunk(chunk)
    if primary.events is not None:
        primary.events.append(OffloadingEvent([key], primary.medium, removed=True))
    return True


def _state_capacity(
    config: AgentKVConfig,
    offloading: OffloadingConnectorScheduler,
    pool_blocks: int,
) -> None:
    primary = offloading.manager.primary_tier
    chunk_bytes = primary.get_kv_memoryview().strides[0]
    num_chunks = primary._num_chunks
    logger.info(
        "agentkv: policy %s; GPU pool: %d blocks of %d tokens; DRAM tier: %d blocks, %d bytes "
        "(%.2f GiB)",
        config.policy,
        pool_blocks,
        min(group.tokens_per_block for group in offloading.config.kv_group_configs),
        num_chunks,
        num_chunks * chunk_bytes,
        num_chunks * chunk_bytes / 2**30,
    )
