"""How a pause looks to the policy: what it holds, what each action costs, who needs the memory.

Measured, not assumed: prefill times and link speeds come from the cost model, bytes from the
engine's own cache layout, the price of HBM from the pressure on the pool. Used by `controller`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentkv.clock import Clock
from agentkv.config import AgentKVConfig
from agentkv.cost_model import CostModel, Prices
from agentkv.geometry import KvFootprint
from agentkv.ledger import Ledger
from agentkv.metrics import Recorder
from agentkv.newcomers import Newcomers, is_newcomer
from agentkv.policy import PausePolicy, PauseView
from agentkv.predict import WaitEstimate, WaitPredictor
from agentkv.sessions import BlockRef, Pause, Session, SessionTracker

_PRESSURE_HALF_LIFE_S = 1.0
_ENOUGH_STEPS = 32  # prefill steps after which the curve is trusted to skip a load


@dataclass(frozen=True, slots=True)
class Location:
    """Where a reload would find a run of blocks.

    `num_missing` of them are in no tier (and will not be); `num_unstored` are in the pool alone and
    copied out before it gives them up; `slow_s` are the seconds until those that only the tiers
    below DRAM have are in DRAM.
    """

    num_missing: int
    num_unstored: int = 0
    slow_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Deps:
    """What a controller is made of; each part can be replaced on its own.

    `locate(refs)` tells where these blocks are, apart from the GPU pool; `tokens_by_tier(refs)` how
    many of their tokens each tier has KV of, the pool (gpu) included. `at_close` is called once
    when the engine stops.
    """

    costs: CostModel
    footprint: KvFootprint
    predictor: WaitPredictor
    policy: PausePolicy
    ledger: Ledger
    recorder: Recorder
    clock: Clock
    locate: Callable[[Sequence[BlockRef]], Location]
    tokens_by_tier: Callable[[Sequence[BlockRef]], Mapping[str, int]] = lambda refs: {}
    at_close: Callable[[], object] = lambda: None


class Appraiser:
    """Owned by the controller. `pressure` is the share of the blocks wanted that only live KV can
    provide: the price of HBM, zero when nobody waits for blocks.
    """

    def __init__(
        self,
        config: AgentKVConfig,
        deps: Deps,
        sessions: SessionTracker,
        *,
        tokens_per_hash: int,
    ) -> None:
        self._config = config
        self._deps = deps
        self._sessions = sessions
        self._tokens_per_hash = tokens_per_hash
        self.newcomers = Newcomers()
        self.pressure = 0.0
        self._pressure_at_s = deps.clock.monotonic_s()

    def observe_demand(self, *, wanted_blocks: int, worthless_blocks: int) -> float:
        """Updates the pressure; it rises at once and halves every second.

        `wanted_blocks`: what waiting and running requests lack; `worthless_blocks`: how many of
        those the pool has empty or dead.
        """
        now_s = self._deps.clock.monotonic_s()
        shortage = max(0, wanted_blocks - worthless_blocks)
        current = shortage / wanted_blocks if wanted_blocks > 0 else 0.0
        age_s = now_s - self._pressure_at_s
        decayed = self.pressure * 0.5 ** (age_s / _PRESSURE_HALF_LIFE_S)
        self.pressure = max(current, decayed if decayed > 0.01 else 0.0)
        self._pressure_at_s = now_s
        return self.pressure

    def view(self, session: Session, pause: Pause, now_s: float) -> PauseView:
        """What the policy may know now. Walks the session's blocks only if somebody needs some."""
        age_s = now_s - pause.started_s
        tag = pause.tag
        wait = self._deps.predictor.estimate(
            tag.tool,
            tag.command,
            age_s=age_s,
            expected_wait_s=tag.expected_wait_s,
            timeout_s=tag.timeout_s,
            session=session.key,
        )
        private_tokens = pause.context_tokens
        location = Location(0)
        num_refs = 1
        if self.pressure > 0:
            refs = self._sessions.private_blocks(session)
            private_tokens = min(len(refs) * self._tokens_per_hash, pause.context_tokens)
            location, num_refs = self._deps.locate(refs), max(1, len(refs))
        view = self._build(pause, wait, private_tokens, location, age_s=age_s, num_refs=num_refs)
        if is_newcomer(session, pause):
            return replace(view, share_back=self.newcomers.share_back)
        return view

    def min_load_tokens(self) -> float:
        """The shortest DRAM hit worth loading, in tokens."""
        configured = self._config.min_load_tokens
        if configured != "auto":
            return configured
        if self._deps.costs.prefill.num_observations < _ENOUGH_STEPS:
            return 0
        footprint = self._deps.footprint
        return self._deps.costs.min_load_tokens(
            footprint.unbounded_bytes_per_token, footprint.fixed_bytes
        )

    def _build(
        self,
        pause: Pause,
        wait: WaitEstimate,
        private_tokens: int,
        location: Location,
        *,
        age_s: float,
        num_refs: int = 1,
    ) -> PauseView:
        costs = self._deps.costs
        share = private_tokens / max(1, pause.context_tokens)
        kv_bytes = int(self._deps.footprint.bytes_for(pause.context_tokens) * share)
        return PauseView(
            now_s=pause.started_s + age_s,
            age_s=age_s,
            context_tokens=pause.context_tokens,
            kv_bytes=kv_bytes,
            wait=wait,
            recompute_s=costs.recompute_s(
                pause.context_tokens, cached_tokens=pause.context_tokens - private_tokens
            ),
            reload_s=costs.reload_s(kv_bytes) + location.slow_s,
            store_s=costs.store_link.seconds(kv_bytes * location.num_unstored / num_refs),
            dram_bytes_missing=int(kv_bytes * location.num_missing / num_refs),
            load_bytes_per_s=costs.load_link.bytes_per_s,
            prices=Prices(hbm=self.pressure, dram=self._config.prices.dram_over_hbm),
            pressure=self.pressure,
            min_load_tokens=self.min_load_tokens(),
            previous_action=pause.decision.action if pause.decision is not None else None,
            stall_s=self._config.prices.stall_s,
            running_bytes=self._running_bytes(),
        )

    def _running_bytes(self) -> int:
        """KV of the turns that a recompute would delay; of interest under pressure only."""
        if self.pressure <= 0:
            return 0
        return int(self._deps.footprint.bytes_for(self._sessions.running_tokens()))
