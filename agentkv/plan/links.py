"""Links over which KV leaves a device and comes back, and what they reach in one direction.

Links to the host count per device, drives and networks per node.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from agentkv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Link:
    """`bytes_per_s` of one direction; `is_per_device`: each accelerator has its own."""

    name: str
    bytes_per_s: float
    is_per_device: bool = False

    def of(self, num_devices: int) -> float:
        """Bytes per second that so many devices get together."""
        return self.bytes_per_s * (num_devices if self.is_per_device else 1)


LINKS: Final = {
    link.name: link
    for link in (
        # PCI-SIG: 16 lanes give 32 and 64 GB/s each way. The documents' round trip of 215 ms for
        # 5 GiB over PCIe 5 is 50 GB/s; PCIe 4 is taken at the same share of its rate.
        Link("pcie4", 25e9, is_per_device=True),
        Link("pcie5", 50e9, is_per_device=True),
        # NVIDIA data sheets: NVLink-C2C, 900 GB/s both ways together for each Grace. A GH200 has
        # one GPU on it, a GB200 two.
        Link("c2c", 450e9, is_per_device=True),
        Link("c2c-gb200", 225e9, is_per_device=True),
        # One drive of four lanes, sequential reads by data sheets: PCIe 4 7 GB/s, PCIe 5 14 GB/s.
        Link("nvme4", 7e9),
        Link("nvme5", 14e9),
        # Ethernet, line rate in bytes.
        *(Link(f"{rate}gbe", rate * 1e9 / 8) for rate in (10, 25, 100, 200, 400)),
    )
}


def find_link(option: str, name: str) -> Link:
    """A link of the table, or `NAME:GB_PER_S`. Raises ConfigError that names the nearest."""
    if name.lower() in LINKS:
        return LINKS[name.lower()]
    label, _, speed = name.partition(":")
    try:
        bytes_per_s = float(speed or label) * 1e9
    except ValueError:
        near = difflib.get_close_matches(name.lower(), LINKS, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ConfigError(
            f"{option} {name}: not known{hint}; give one of {', '.join(LINKS)}, or NAME:GB_PER_S"
        ) from None
    if not 1e3 <= bytes_per_s <= 1e18:
        raise ConfigError(f"{option} {name}: out of range; give GB/s, as fast:100")
    return Link(label, bytes_per_s)
