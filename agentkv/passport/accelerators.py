"""Accelerators by name: published memory, bandwidth and dense 16-bit arithmetic.

Peaks are without sparsity; what a kernel reaches is less. Sources stand at each entry.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from agentkv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. `link`: how it reaches the host's memory, a name of `agentkv.plan.links`."""

    name: str
    hbm_bytes: float
    bytes_per_s: float
    flops_per_s: float
    link: str = "pcie5"

    @property
    def ridge(self) -> float:
        """FLOP per byte at which arithmetic and reading take the same time (Williams 2009)."""
        return self.flops_per_s / self.bytes_per_s


ACCELERATORS: Final = {
    each.name: each
    for each in (
        # NVIDIA A100 80GB SXM data sheet (2021): 80 GB, 2,039 GB/s, 312 TFLOPS bf16.
        Accelerator("a100", 80e9, 2.039e12, 312e12, "pcie4"),
        # NVIDIA L40S data sheet (2023): 48 GB, 864 GB/s, 362 TFLOPS bf16 dense.
        Accelerator("l40s", 48e9, 0.864e12, 362e12, "pcie4"),
        # NVIDIA H100 SXM data sheet (2023): 80 GB, 3.35 TB/s, 1,979 TFLOPS bf16 with sparsity:
        # 989.5 dense, rounded to 990.
        Accelerator("h100", 80e9, 3.35e12, 990e12),
        # NVIDIA H200 SXM data sheet (2024): 141 GB, 4.8 TB/s, arithmetic of the H100.
        Accelerator("h200", 141e9, 4.8e12, 990e12),
        # NVIDIA GH200 data sheet (2023), HBM3e: 144 GB, 4.9 TB/s, arithmetic of the H100.
        Accelerator("gh200", 144e9, 4.9e12, 990e12, "c2c"),
        # NVIDIA Blackwell architecture brief (2024): 192 GB, 8 TB/s, 4.5 PFLOPS bf16 with
        # sparsity: 2.25 dense. HGX boards sold later show 180 GB of it.
        Accelerator("b200", 192e9, 8e12, 2250e12),
        # NVIDIA GB200 NVL72 data sheet (2024), a 72nd of: 13.4 TB (186 GB), 576 TB/s, 360 PFLOPS
        # bf16 with sparsity: 2.5 dense.
        Accelerator("gb200", 186e9, 8e12, 2500e12, "c2c-gb200"),
        # AMD Instinct MI300X data sheet (2023): 192 GB, 5.3 TB/s, 1,307 TFLOPS bf16 dense.
        Accelerator("mi300x", 192e9, 5.3e12, 1307e12),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """One of the table. Raises ConfigError that names the nearest."""
    key = name.lower().removeprefix("nvidia-").removeprefix("amd-")
    if key in ACCELERATORS:
        return ACCELERATORS[key]
    near = difflib.get_close_matches(key, ACCELERATORS, n=1, cutoff=0.4)
    hint = f" (nearest: {near[0]})" if near else ""
    raise ConfigError(f"--accelerator {name}: not known{hint}; known are {', '.join(ACCELERATORS)}")
