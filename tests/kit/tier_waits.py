"""Steps of a rig take no time; the disk or the server of a tier below DRAM does."""

from __future__ import annotations

import time
from typing import Any

_TIMEOUT_S = 20.0


def let_tiers_work(connector: Any) -> None:
    """A moment, if somebody waits for a tier."""
    manager = _manager_with_tiers(connector)
    if manager is None:
        return
    if _is_asking(manager):
        time.sleep(0.01)  # As long as a step takes by the rig's clock, by which turns give up.
    elif manager.has_pending_work():
        time.sleep(0.0005)


def _is_asking(manager: Any) -> bool:
    """Whether a look-up in a server is under way, for which turns wait too."""
    indices = (tier._index for tier in manager.tiers)
    states = (index._lookup_state for index in indices if index is not None)
    return any(state.result is None for known in states for state in known.values())


def wait_for_tiers(connector: Any) -> None:
    """Until all that is under way has ended and is accounted for."""
    manager = _manager_with_tiers(connector)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while manager is not None and manager._jobs and time.monotonic() < deadline_s:
        manager._process_finished_jobs()
        time.sleep(0.001)


def _manager_with_tiers(connector: Any) -> Any:
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    return manager if getattr(manager, "tiers", ()) else None
