"""Which tier below DRAM a paused session's KV goes to: the one that will have cost least.

What: rent for the expected wait, plus what moving it there and back takes, plus the risk that the
next turn comes to an engine which cannot reach it. All in seconds of fully contended GPU memory for
the same bytes, as everywhere in `agentkv.policy`. Why no more: the tiers are few and far apart.
Where: `connectors.demoter` asks when a pause is long or DRAM is short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierOffer:
    """A tier that would take the KV now.

    `price` is per second and byte, relative to contended GPU memory; `is_shared`: other engines can
    load from it too.
    """

    name: str
    price: float
    store_s: float
    load_s: float
    is_shared: bool = False


def choose_tier(
    offers: Iterable[TierOffer], *, wait_s: float, recompute_s: float, elsewhere: float = 0.0
) -> TierOffer | None:
    """The cheapest tier for a wait of `wait_s`; None if recomputing is faster than every reload.

    `elsewhere`: the chance that the next turn comes to another engine.
    """

    def cost_s(offer: TierOffer) -> float:
        risk_s = 0.0 if offer.is_shared else elsewhere * max(0.0, recompute_s - offer.load_s)
        return offer.price * wait_s + offer.store_s + offer.load_s + risk_s

    useful = [offer for offer in offers if offer.load_s < recompute_s]
    return min(useful, key=cost_s, default=None)
