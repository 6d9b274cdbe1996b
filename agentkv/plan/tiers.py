"""Which tiers below the GPU are worth buying: what a resumed turn costs through each.

A turn that comes back from a tier saves the GPUs a recompute. While it waited, its bytes lay in the
tier. So a tier pays while what a GB-month of it saves is worth more than its price:

    (recompute_s · GPUs · GPU price) · (GB / session bytes) · (month / wait)

A link that is too slow for a full tier makes the rest of it useless, and the value that much less.
Assumed: the tier is full of paused sessions, saved GPU time is worth its price, a load runs beside
other work (it takes no GPU time), and only pauses beyond the break-even wait go there. There are no
default prices: without them the answer is the highest price at which a tier still pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentkv.config import PricesConfig
from agentkv.cost_model import Prices
from agentkv.errors import ConfigError
from agentkv.plan.links import LINKS, Link, find_link
from agentkv.plan.node import Node
from agentkv.plan.quantities import Distribution, parse_bytes
from agentkv.plan.waits import Resume, break_even

MONTH_S: Final = 730 * 3600.0
_SHAPE: Final = "NAME:SIZE[:LINK[:PRICE]], as dram:2TB:pcie5:0.5"
_DEFAULT_LINKS: Final = {"ssd": "nvme4", "redis": "100gbe", "lmcache": "100gbe"}


@dataclass(frozen=True, slots=True)
class Tier:
    """`size_bytes`: of the whole node, 0 if not given; `price`: of a GB for a month, if given."""

    name: str
    size_bytes: float
    link: Link
    price: float | None = None

    @property
    def rent(self) -> float:
        """Its shadow price over that of contended GPU memory, as agentkv's own settings have it."""
        defaults = PricesConfig()
        return {"dram": defaults.dram_over_hbm, "ssd": defaults.ssd_over_hbm}.get(
            self.name, defaults.remote_over_hbm
        )


@dataclass(frozen=True, slots=True)
class TierValue:
    """`sessions`: how many more can pause there; `most_price`: of a GB and month, at which it pays.

    `turn_cost`, `recompute_cost`: of one resumed turn, where prices are given. `link_share`: of the
    link's time that resumes would take if the tier were full; above 1 it never is.
    """

    tier: Tier
    sessions: int
    reload_s: float
    saved_gpu_s: float
    wait_s: float
    most_price: float
    turn_cost: float | None
    recompute_cost: float
    link_share: float
    verdict: str


def usual_tiers(host_link: str) -> tuple[Tier, ...]:
    """DRAM, an SSD and a server over 100 GbE, of no particular size."""
    return (
        Tier("dram", 0, LINKS[host_link]),
        Tier("ssd", 0, LINKS["nvme4"]),
        Tier("redis", 0, LINKS["100gbe"]),
    )


def parse_tiers(specs: Sequence[str], host_link: str) -> tuple[Tier, ...]:
    """`NAME:SIZE[:LINK[:PRICE]]` each, LINK a known one or GB/s. Raises ConfigError."""
    tiers = tuple(_parse(spec, host_link) for spec in specs)
    names = [tier.name for tier in tiers]
    for spec, name in zip(specs, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError(f"--tier {spec}: {name} is given twice; give it once, with its sum")
    return tiers


def _parse(spec: str, host_link: str) -> Tier:
    name, size, *rest = (*spec.split(":"), "")
    usual = {"dram": host_link, **_DEFAULT_LINKS}
    if name not in usual:
        raise ConfigError(f"--tier {spec}: a tier is one of {', '.join(usual)}; give {_SHAPE}")
    link, price = (*rest, "", "")[:2]
    if spec.count(":") not in (1, 2, 3):
        raise ConfigError(f"--tier {spec}: give {_SHAPE}")
    return Tier(
        name,
        parse_bytes("--tier", size),
        find_link("--tier", link or usual[name]),
        _price(spec, price) if price else None,
    )


def _price(spec: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e9:
        raise ConfigError(f"--tier {spec}: the price is no number from 0 up; give {_SHAPE}")
    return price


def value_of(
    tier: Tier, resume: Resume, node: Node, waits: Distribution, gpu_price: float | None
) -> TierValue:
    """What a tier is worth; prices of GPU time default to 1 an hour, which scales `most_price`."""
    prices = Prices(hbm=1.0, dram=tier.rent)
    found = break_even(resume, tier.link, node.replica_devices, prices, waits)
    wait_s = waits.mean_above(found.stored_break_even_s)
    pays_in_time = found.reload_s < resume.recompute_s and wait_s > 0
    saved = resume.recompute_s * node.replica_devices if pays_in_time else 0.0
    per_second = (1.0 if gpu_price is None else gpu_price) / 3600
    gigabytes = resume.kv_bytes / 1e9
    most = saved * per_second / gigabytes * MONTH_S / wait_s if wait_s else 0.0
    link_share = _link_share(tier, wait_s, node)
    useful = min(1.0, 1 / link_share) if link_share else 1.0
    most *= useful
    cost = None if tier.price is None else tier.price * gigabytes * wait_s / MONTH_S / useful
    return TierValue(
        tier=tier,
        sessions=int(tier.size_bytes * useful // resume.kv_bytes),
        reload_s=found.reload_s,
        saved_gpu_s=saved,
        wait_s=wait_s,
        most_price=most,
        turn_cost=cost,
        recompute_cost=resume.recompute_s * node.replica_devices * per_second,
        link_share=link_share,
        verdict=_verdict(tier, found.reload_s < resume.recompute_s, wait_s, most, gpu_price),
    )


def _link_share(tier: Tier, wait_s: float, node: Node) -> float:
    """Bytes that come back per second from a full tier, over what the link gives the node."""
    return tier.size_bytes / wait_s / tier.link.of(node.num_devices) if wait_s else 0.0


def _verdict(
    tier: Tier, is_faster: bool, wait_s: float, most: float, gpu_price: float | None
) -> str:
    if not is_faster:
        return "no: computing is faster"
    if wait_s == 0:
        return "no: no pause is long enough"
    if tier.price is None:
        return f"up to {most:,.3g}/GB-month"
    if gpu_price is None:
        return f"if a GPU-hour costs over {tier.price / most:,.3g}"
    return "yes" if tier.price < most else f"no: pays below {most:,.3g}/GB-month"
