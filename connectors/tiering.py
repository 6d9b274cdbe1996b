"""vLLM's tiering manager without its write-through: a tier below DRAM gets what it is told to take.

Promotion stays vLLM's: a look-up that finds a block in a slow tier loads it into DRAM, and the turn
waits or, if that takes too long, computes. Demotion is ours (`demoter`): DRAM's blocks are written
ahead of need, and stay readable until their room is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from vllm.v1.kv_offload.base import LookupResult, OffloadingSpec, OffloadKey, ReqContext
from vllm.v1.kv_offload.tiering.base import JobResult
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    JobMetadata,
    TieringOffloadingManager,
)

from .cache_policy import AgentKVCachePolicy
from .chunk_sums import ChunkSums
from .store_tier import StoreTier

Demoted = Callable[[StoreTier, Sequence[OffloadKey], Sequence[OffloadKey]], None]

_DEMOTION = ReqContext(req_id="agentkv-demotion")


class AgentKVTieringManager(TieringOffloadingManager):
    """Owned by the scheduler thread."""

    def __init__(
        self,
        primary_tier: CPUPrimaryTierOffloadingManager,
        spec: OffloadingSpec,
        sums: ChunkSums | None,
    ) -> None:
        super().__init__(primary_tier)
        self.spec = spec
        self.sums = sums
        self.dram: AgentKVCachePolicy = primary_tier._policy
        self.tiers: tuple[StoreTier, ...] = ()
        self.num_demoting_chunks = 0
        self.keeps_tiers_on_reset = False
        # Called with the request, the tier and the block that comes from it.
        self.on_promotion: Callable[[str, StoreTier, OffloadKey], None] | None = None
        # Called with the request whose blocks have come up to DRAM, or have failed to.
        self.on_promoted: Callable[[str], None] | None = None
        # Called with the blocks of a promotion that has ended, well or not.
        self.on_came_up: Callable[[Iterable[OffloadKey]], None] | None = None
        # Called before a reset empties DRAM.
        self.before_reset: Callable[[], None] | None = None
        # Called with the tier and the blocks of a demotion that has ended: taken and refused ones.
        self.on_demoted: Demoted | None = None

    def attach(self, tiers: Sequence[StoreTier]) -> None:
        """The tiers below DRAM, in the order in which they are asked. Before the first request."""
        super().__init__(self.primary_tier, list(tiers))
        self.tiers = tuple(tiers)
        for tier in tiers:
            tier.on_stored = self._note_stored
        self.dram.has_copy = lambda key: self.find_below(key) is not None

    @property
    def num_free_chunks(self) -> int:
        return int(self.primary_tier._get_num_free_chunks())

    @property
    def num_chunks(self) -> int:
        return int(self.primary_tier._num_chunks)

    @property
    def num_storable_chunks(self) -> int:
        """Chunks that DRAM could take now, by evicting all that may be evicted."""
        return self.num_free_chunks + int(self.primary_tier._num_evictable_cache_chunks)

    def find_below(self, key: OffloadKey) -> StoreTier | None:
        """The first tier below DRAM that has this block."""
        return next((tier for tier in self.tiers if tier.holds(key)), None)

    def is_idle(self, key: OffloadKey) -> bool:
        """Whether DRAM has this block, complete and used by no copy."""
        chunk = self.dram.get(key)
        return chunk is not None and chunk.ref_cnt == 0

    def demote(self, tier: StoreTier, keys: Sequence[OffloadKey]) -> None:
        """Begins to write idle blocks of DRAM to a tier below; they cannot be evicted meanwhile."""
        if keys:
            job = self.create_store_job(list(keys), _DEMOTION, self._tier_index[tier])
            self.num_demoting_chunks += len(keys)
            tier.submit_store(job)

    # --- TieringOffloadingManager ---

    def lookup(
        self, key: OffloadKey, req_context: ReqContext, *, exclude_tier_idx: int | None = None
    ) -> LookupResult:
        """vLLM's. With nothing below DRAM without its counting, which makes it take four to eight
        times as long: vLLM asks for every block of every waiting turn with every step."""
        if not self.tiers:
            return self.primary_tier.lookup(key, req_context)
        return super().lookup(key, req_context, exclude_tier_idx=exclude_tier_idx)

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """vLLM's, without the copy to every tier below."""
        self.primary_tier.complete_store(keys, req_context, success)
        state = self._req_state[req_context.req_id]
        state.pending_primary_stores -= 1
        self._maybe_finalize_request(req_context.req_id)

    def has_pending_work(self) -> bool:
        """Whether steps are needed: somebody waits for a promotion, nobody for a demotion."""
        return any(job.transfer_job.is_promotion for job in self._jobs.values())

    def _initiate_promotion(self, tier_idx: int, key: OffloadKey, req_context: ReqContext) -> bool:
        risen = self._request_load_sources.get(req_context.req_id, ())
        if len(risen) >= self.num_chunks and key not in risen:
            return False  # It would push out what came up before it, and that again, for ever.
        is_begun = bool(super()._initiate_promotion(tier_idx, key, req_context))
        if is_begun and self.on_promotion is not None:
            self.on_promotion(req_context.req_id, self.tiers[tier_idx], key)
        return is_begun

    def _complete_promotion(self, job_metadata: JobMetadata, completed_job: JobResult) -> None:
        super()._complete_promotion(job_metadata, completed_job)
        job = job_metadata.transfer_job
        if self.on_came_up is not None:
            self.on_came_up(job.keys)
        if self.on_promoted is not None:
            self.on_promoted(job.req_context.req_id)

    # --- parts ---

    def _note_stored(
        self, tier: StoreTier, taken: Sequence[OffloadKey], refused: Sequence[OffloadKey]
    ) -> None:
        self.num_demoting_chunks -= len(taken) + len(refused)
        self.dram.make_ready(taken)
        if self.on_demoted is not None:
            self.on_demoted(tier, taken, refused)

    def reset_cache(self) -> None:
        """vLLM's, and what was stored below is fenced off unless it may be kept."""
        if self.before_reset is not None:
            self.before_reset()
        super().reset_cache()
        if not self.keeps_tiers_on_reset:
            for tier in self.tiers:
                tier.fence()

    def shutdown(self) -> None:
        super().shutdown()
        if self.sums is not None:
            self.sums.close()
