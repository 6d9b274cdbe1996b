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
from agentkv.policy.fixed import FixedPolicy

POLICIES: Final[Mapping[str, Callable[[], PausePolicy]]] = {
    "break_even": BreakEvenPolicy,
    "always_hold": partial(FixedPolicy, Action.HOLD),
    "always_swap": partial(FixedPolicy, Action.SWAP),
    "always_recompute": partial(FixedPolicy, Action.RECOMPUTE),
}

__all__ = ["POLICIES", "Action", "Decision", "PausePolicy", "PauseView"]
