"""What levels and views together believe of one wait, before its age is looked at.

What: `Opinion`, the mixed distribution with all that it was mixed from, and `form_opinion`, which
walks the chain of levels and mixes a session's own past in. Why: asking and learning need the same
walk. Where: between `hierarchical` and the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentkv.predict.contexts import (
    ALL,
    ALL_HUMAN,
    KIND_TO_LEAN,
    Seen,
    chain,
    group_of,
    tool_key,
    views,
)
from agentkv.predict.histogram import (
    NUM_BINS,
    Hazards,
    Mass,
    any_tail,
    ignorant_hazards,
    masses_of,
)
from agentkv.predict.levels import Key, Levels
from agentkv.predict.mixing import Evidence, Mixing, Slot
from agentkv.predict.place import Place
from agentkv.predict.session_memory import SessionMemory

_FLOOR = 1e-9
_MOST_EVIDENCE = 2.0  # nats, for or against a bin: a session has seen few waits, the tail fewer
_DOUBT = 0.02  # how often a wait is unlike all that its command and session did before
_NO_EVIDENCE: Evidence = np.empty((0, NUM_BINS))


class Opinion(NamedTuple):
    """`mass` sums to 1: `mixed` with some doubt. `reference` is what all waits say; `root`, what
    those of its family do: of humans, or of tools.

    `finest`: the last level of the chain that knows something, and how many waits were seen there.
    `slots` and `evidence`: the session's views, for `Mixing.learn`. `keys`: what learns this wait.
    """

    mass: Mass
    reference: Mass
    root: Mass
    mixed: Mass
    slots: Sequence[Slot]
    evidence: Evidence
    keys: Sequence[Key]
    finest: Key
    num_observed: int


def form_opinion(
    place: Place, seen: Seen, memory: SessionMemory | None, levels: Levels, mixing: Mixing
) -> Opinion:
    """Changes nothing. Without a memory it is what the place says, to whatever session."""
    keys = chain(place, seen)
    believed, finest, num_observed = _walk(keys, levels)
    shared = views(place, seen, memory.past(place)) if memory is not None else []
    found = [(view, level) for view in shared if (level := levels.get(view.key))]
    if memory is not None:
        own = memory.own_views(place, seen, keys[-1])
        found += [(view, level) for view in own if (level := memory.levels.get(view.key))]
    asked = [keys[-1], ALL, keys[0], tool_key(place, seen), *(v.compared_with for v, _ in found)]
    key_to_row = {key: row for row, key in enumerate(dict.fromkeys(asked))}
    masses = masses_of(
        np.array(
            [believed[key] for key in key_to_row]
            + [
                level.lean_on(believed[view.compared_with], KIND_TO_LEAN[view.key.kind])
                for view, level in found
            ]
        )
    )
    mixed, reference, root, of_tool = (masses[key_to_row[key]] for key in asked[:4])
    slots: list[Slot] = []
    evidence = _NO_EVIDENCE
    if found:
        group = group_of(place, seen)
        slots = [(view.name, group) for view, _ in found]
        logs = np.log(masses + _FLOOR)
        evidence = logs[len(key_to_row) :] - logs[[key_to_row[key] for key in asked[4:]]]
        np.minimum(evidence, _MOST_EVIDENCE, out=evidence)
        np.maximum(evidence, -_MOST_EVIDENCE, out=evidence)
        mixed = mixing.mix(logs[key_to_row[keys[-1]]], slots, evidence)
    mass = of_tool + reference
    mass += any_tail()
    mass *= _DOUBT / 3
    mass += (1 - _DOUBT) * mixed
    learners = [*keys, *(view.key for view in shared)]
    return Opinion(mass, reference, root, mixed, slots, evidence, learners, finest, num_observed)


def _walk(keys: Sequence[Key], levels: Levels) -> tuple[dict[Key, Hazards], Key, int]:
    """What is believed at each key, and the finest one that anything is known at."""
    believed: dict[Key, Hazards] = {}
    hazards, finest, num_observed = ignorant_hazards(), keys[0], 0
    for key in keys if keys[0] == ALL else (ALL, *keys):
        if key.kind == ALL_HUMAN.kind:
            hazards = ignorant_hazards()
        level = levels.get(key)
        if level is not None:
            hazards = level.lean_on(hazards, KIND_TO_LEAN[key.kind])
            finest, num_observed = key, level.num_observed
        believed[key] = hazards
    return believed, finest, num_observed
