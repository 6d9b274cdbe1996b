"""Policies by the names that `agentkv simulate --policy` takes.

lru                vLLM's native offloading
oracle             told every wait: the latest return goes first, in the pool and in DRAM
<policy>           one of `agentkv.policy.POLICIES`, with the default predictor
<policy>_nopredict the same with a predictor that knows only the age of a wait
..._noadmission    any but lru, and nobody is held back
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from agentkv.config import AgentKVConfig
from agentkv.errors import ConfigError
from agentkv.policy import POLICIES, Action
from agentkv.policy.fixed import FixedPolicy
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.sim.keeper import Keeper, NativeKeeper
from agentkv.sim.machine import Machine
from agentkv.sim.managed import ManagedKeeper
from agentkv.sim.tally import Tally
from agentkv.sim.told import AgeOnly, Told
from agentkv.sim.workload import Options

NATIVE: Final = "lru"
ORACLE: Final = "oracle"
BLIND: Final = "_nopredict"
OPEN: Final = "_noadmission"
_OURS: Final = {"managed_lru" if name == NATIVE else name: name for name in POLICIES}


def names() -> list[str]:
    """Every name that `make_keeper` knows."""
    blind = (name + BLIND for name in _OURS if not name.endswith(BLIND))
    ours = list(dict.fromkeys((ORACLE, *_OURS, *blind)))
    return [NATIVE, *ours, *(name + OPEN for name in ours)]


def check_names(chosen: list[str]) -> None:
    """Raises ConfigError with the nearest name where one is not known."""
    for name in chosen:
        if name not in names():
            near = get_close_matches(name, names(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--policy {name}: not known{hint} There are {', '.join(names())}")


def make_keeper(
    name: str,
    machine: Machine,
    tally: Tally,
    options: Options,
    *,
    stretch: float,
    config: AgentKVConfig | None = None,
) -> Keeper:
    """What keeps the KV of one run whose waits are stretched by so much; `config`: its settings."""
    if name == NATIVE:
        return NativeKeeper(machine)
    has_admission = not name.endswith(OPEN)
    name = name.removesuffix(OPEN)
    if name == ORACLE:
        return ManagedKeeper(
            machine,
            tally,
            options,
            policy=FixedPolicy(Action.SWAP),
            predictor=Told(),
            clock=machine.clock,
            stretch=stretch,
            has_admission=has_admission,
            config=config,
        )
    predictor = HierarchicalWaitPredictor()
    ours = _OURS.get(name) or _OURS[name.removesuffix(BLIND)]
    return ManagedKeeper(
        machine,
        tally,
        options,
        policy=POLICIES[ours](),
        predictor=AgeOnly(predictor) if name.endswith(BLIND) else predictor,
        clock=machine.clock,
        stretch=stretch,
        has_admission=has_admission,
        config=config,
    )
