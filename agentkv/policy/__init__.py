"""What to do with a paused session's KV: hold, swap or recompute.

What: the policy contract and the policies by name.
Why: a new policy is one new file and one line in `POLICIES`.
Where: the controller takes the factory that the configuration names.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from agentkv.policy.base import Action, Decision, PausePolicy, PauseView
from agentkv.policy.break_even import BreakEvenPolicy
from agentkv.policy.continuum import ContinuumPolicy
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.policy.fixed import FixedPolicy
from agentkv.policy.fixed_ttl import FixedTtlPolicy
from agentkv.policy.infercept import InferCeptPolicy
from agentkv.policy.lru import LruPolicy
from agentkv.policy.progress_ttl import ProgressTtlPolicy
from agentkv.policy.thunderagent import ThunderAgentPolicy

POLICIES: Final[Mapping[str, Callable[[], PausePolicy]]] = {
    "expected_cost": ExpectedCostPolicy,
    "expected_cost_nopredict": partial(ExpectedCostPolicy, uses_prediction=False),
    "break_even": BreakEvenPolicy,
    "always_hold": partial(FixedPolicy, Action.HOLD),
    "always_swap": partial(FixedPolicy, Action.SWAP),
    "always_recompute": partial(FixedPolicy, Action.RECOMPUTE),
    "lru": LruPolicy,
    "fixed_ttl": FixedTtlPolicy,
    "infercept": InferCeptPolicy,
    "continuum": ContinuumPolicy,
    "thunderagent": ThunderAgentPolicy,
    "progress_ttl": ProgressTtlPolicy,
}

__all__ = ["POLICIES", "Action", "Decision", "PausePolicy", "PauseView"]
