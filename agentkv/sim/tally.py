"""What a run counts, from the end of its warm-up on."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentkv.sim.machine import Machine, Request


@dataclass(slots=True)
class Tally:
    """Seconds, tokens and turns. `resumes`: (context tokens, wait before, TTFT, stall) of each.

    Stall: time to the first token beyond what the new tokens alone take on an idle engine with
    everything else cached: queue, reload, recompute and others' prefills.
    """

    machine: Machine
    from_s: float
    turns: int = 0
    recomputed_tokens: int = 0
    reusable_tokens: int = 0
    gpu_hit_tokens: int = 0
    dram_hit_tokens: int = 0
    prefilled_tokens: int = 0
    queue_s: float = 0.0
    step_s: float = 0.0
    prefill_s: float = 0.0
    recompute_s: float = 0.0
    decoded_tokens: int = 0
    gpu_paused_token_s: float = 0.0
    reload_s: float = 0.0
    hidden_reload_s: float = 0.0
    resumes: list[tuple[int, float, float, float]] = field(default_factory=list)
    _paused_at_s: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.machine.now_s >= self.from_s

    def stepped(self, seconds: float, num_decoded: int) -> None:
        """Steps took so long; called after the clock has moved."""
        if not self.is_on:
            return
        self.step_s += seconds
        self.decoded_tokens += num_decoded
        self.note_paused()

    def note_paused(self) -> None:
        """Adds the token-seconds of paused KV in the pool since the last call."""
        now_s = self.machine.now_s
        since_s = now_s - max(self.from_s, self._paused_at_s)
        if since_s > 0:
            num_tokens = len(self.machine.pool.paused) * self.machine.block_tokens
            self.gpu_paused_token_s += num_tokens * since_s
        self._paused_at_s = now_s

    def prefilled(self, request: Request, num_tokens: int, seconds: float) -> float:
        """A chunk was computed; returns the seconds of it that earlier turns had spent already."""
        known = request.planned.num_known * self.machine.block_tokens
        again = min(max(0, known - request.position), num_tokens)
        recompute_s = seconds * again / num_tokens
        if self.is_on:
            self.prefilled_tokens += num_tokens
            self.prefill_s += seconds
            self.recompute_s += recompute_s
        return recompute_s

    def finished(self, request: Request) -> None:
        if not self.is_on:
            return
        block_tokens = self.machine.block_tokens
        self.turns += 1
        self.queue_s += request.admitted_s - request.arrived_s
        self.reload_s += request.load_s
        self.reusable_tokens += request.num_reusable * block_tokens
        self.recomputed_tokens += request.num_recomputed * block_tokens
        self.gpu_hit_tokens += request.gpu_hit * block_tokens
        self.dram_hit_tokens += request.dram_hit * block_tokens
        if request.is_resume:
            self.resumes.append(self._resume(request))

    def _resume(self, request: Request) -> tuple[int, float, float, float]:
        turn = request.planned.turn
        before_s = request.run.plan.turns[request.number - 1].turn.wait_s or 0.0
        before_s *= request.stretch
        ttft_s = request.first_token_s - request.arrived_s
        new = turn.prompt_tokens - request.planned.num_known * self.machine.block_tokens
        ideal_s = self.machine.profile.prefill_s(new, turn.prompt_tokens - new / 2)
        return turn.prompt_tokens, before_s, ttft_s, max(0.0, ttft_s - ideal_s)
