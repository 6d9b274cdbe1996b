"""Deletes what nobody uses any more from a directory of the SSD tier.

What: engine directories chosen by namespace or by age; a namespace goes with the last of its own.
Why never a locked one: an engine is at work in it; the lock is taken before anything is deleted.
Where: `agentkv store prune`; engines themselves reclaim space in the same way when they need it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from agentkv.tiers.disk.inspect import EngineFacts, NamespaceFacts
from agentkv.tiers.disk.space import _delete_idle


def to_prune(
    namespaces: Sequence[NamespaceFacts],
    *,
    keep: Collection[str] = (),
    older_than_s: float | None = None,
) -> list[EngineFacts]:
    """Engine directories that are not in use, of namespaces that are not to be kept.

    With `older_than_s` only those that nobody has used for so long.
    """
    now_s = time.time()
    return [
        engine
        for namespace in namespaces
        if namespace.digest not in keep
        for engine in namespace.engines
        if not engine.is_locked and (older_than_s is None or now_s - engine.used_s >= older_than_s)
    ]


def prune_disk(engines: Sequence[EngineFacts]) -> list[EngineFacts]:
    """Deletes them; returns those that are gone. One that an engine has taken meanwhile stays."""
    return [engine for engine in engines if _delete_idle(engine.folder)]
