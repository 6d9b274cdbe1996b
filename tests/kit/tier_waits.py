"""Steps of a rig take no time; the disk or the server of a tier below DRAM does.

So a step waits until the tiers have done what they were told: on a busy machine, or a slow disk,
everything happens in the order in which it does on this one. Where a test holds a tier up itself
(`Rig.has_stuck_tier`), steps go on at the pace of the rig's clock, by which turns give up.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.kv_offload.tiering.async_lookup import LookupPhase

_TIMEOUT_S = 60.0
_POLL_S = 0.0003


def let_tiers_work(rig: Any) -> None:
    """Until the tiers have nothing to do; if one is stuck, for as long as a step takes, if somebody
    waits for a tier."""
    manager = _manager_with_tiers(rig.connector)
    if manager is None:
        return
    is_waiting = _is_waited_for if rig.has_stuck_tier else _is_at_work
    deadline_s = time.monotonic() + (rig.step_s if rig.has_stuck_tier else _TIMEOUT_S)
    while is_waiting(manager) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _is_at_work(manager: Any) -> bool:
    pools = (pool for tier in manager.tiers for pool in (tier._pool._loads, tier._pool._stores))
    return _is_asking(manager) or any(pool._inflight_jobs > 0 for pool in pools)


def _is_waited_for(manager: Any) -> bool:
    return _is_asking(manager) or _is_loading(manager)


def _is_asking(manager: Any) -> bool:
    """Whether a look-up in a server is under way, for which turns wait too."""
    indices = [tier._index for tier in manager.tiers if tier._index is not None]
    for index in indices:
        index.drain_results()
    states = (state for index in indices for state in index._lookup_state.values())
    return any(state.phase is LookupPhase.IN_FLIGHT for state in states)


def _is_loading(manager: Any) -> bool:
    jobs = (job.job for tier in manager.tiers for job in tier._jobs.values())
    return any(job.is_promotion for job in jobs)


def wait_for_tiers(connector: Any) -> None:
    """Until all that is under way has ended and is accounted for."""
    manager = _manager_with_tiers(connector)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while manager is not None and manager._jobs and time.monotonic() < deadline_s:
        manager._process_finished_jobs()
        time.sleep(_POLL_S)


def _manager_with_tiers(connector: Any) -> Any:
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    return manager if getattr(manager, "tiers", ()) else None
