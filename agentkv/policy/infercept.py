"""Least waste of memory (InferCept, Abhyankar et al. 2024, arXiv 2402.01869). A rival.

    preserve   remaining wait · own KV
    discard    recompute time · (own KV / 2 + KV of the running batch)
    swap       transfer time · own KV

What: the action that wastes the fewest byte-seconds. Why: the first published rule for pauses at
tools. Where: `policy: infercept`. Preserve and discard as in its code (`scheduler_v2.py`): a
recompute in chunks holds half of its memory on average, and delays the whole running batch.

Simplified: the remaining wait is the predictor's median (its own profiles a tool or takes the time
passed so far); its swaps are a byte budget per iteration that stalls the batch, ours run beside the
compute, so they waste what they move; all pauses are weighed alone, where it discards all but the
one of most waste. Ranked by action and latest return.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless
from agentkv.policy.release import release_of, seconds, text_of


@dataclass(frozen=True, slots=True)
class InferCeptPolicy:
    """See the module."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`. Costs are wastes over the KV's own bytes, in seconds."""
        return give_up_if_useless(view) or _least_waste(view)


def _least_waste(view: PauseView) -> Decision:
    release = release_of(view)
    batch = max(0, view.running_bytes) / max(1, view.kv_bytes)
    again_s = seconds(view.recompute_s) * (0.5 + batch)
    wastes_s = {Action.HOLD: seconds(view.wait.p50_s), Action.RECOMPUTE: again_s}
    if release.can_swap:
        wastes_s[Action.SWAP] = release.store_s + seconds(view.reload_s)
    action = min(wastes_s, key=lambda each: wastes_s[each])
    let_go_s = min(wastes_s[each] for each in wastes_s if each is not Action.HOLD)
    return Decision(
        action,
        f"{view.wait.source}: {action} wastes least, {text_of(wastes_s[action])} of its memory",
        break_even_s=let_go_s,
        costs_s={each.value: waste_s for each, waste_s in wastes_s.items()},
    )
