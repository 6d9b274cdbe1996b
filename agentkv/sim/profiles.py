"""What a node can do: pool, speeds of prefill and decode, links. Published ones, or a measured one.

Sources. KV bytes per token: 2·layers·KV heads·head dim·2 bytes (`geometry.ModelShape`). x0, the
position at which attention costs as much as the rest: 2·P / (4·layers·heads·head dim). Pool sizes,
decode steps, 75 % of the memory bandwidth and 50 GB/s per GPU of PCIe: the study behind this
project (`headroom`, section 2), whose G = 464 GB and 56 GB are what bf16 weights leave of 80 GB
GPUs. It does not state the prefill rate R. For `70b` and `8b`, R is what makes this simulator give
the study's rows for native offloading (AgentCgroup, stretched: sessions per hour, stall and share
recomputed at 1/0, 2/1, 4/1, 4/4 and 8/4): 8,000 and 40,000 tokens/s, which are 14 % and 65 % of
what the dense bf16 FLOP/s of the data sheet (989e12 per H100 SXM) give at 2·P FLOP a token. For
`gb200`, R = MFU·FLOP/s / (2·P) with MFU = 0.35, an assumption, and 2.25e15 FLOP/s per B200. A
measured profile is a JSON file with the same fields, and right for its own machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.errors import ConfigError

MFU: Final = 0.35
READ_SHARE: Final = 0.75
_H100_BYTES_PER_S: Final = 3.35e12
_B200_FLOPS: Final = 2.25e15
_B200_BYTES_PER_S: Final = 8e12


class Profile(BaseModel):
    """One engine. Bytes and FLOPs are those of all its GPUs together."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = "measured"
    pool_tokens: int = Field(gt=0)
    """KV tokens that the GPU pool holds."""

    bytes_per_token: float = Field(gt=0)
    """KV bytes of a token."""

    prefill_tokens_per_s: float = Field(gt=0)
    """R: prefill at position 0."""

    prefill_x0_tokens: float = Field(gt=0)
    """x0: a token at this position takes twice as long: (n + n·pos/x0)/R."""

    prefill_step_s: float = Field(default=0.0, ge=0)
    """Seconds that a step with prefill takes whatever its size."""

    decode_step_s: float = Field(gt=0)
    """A decode step without its reads of KV."""

    kv_read_bytes_per_s: float = Field(gt=0)
    """At which a decode step reads KV."""

    load_bytes_per_s: float = Field(gt=0)
    """DRAM to GPU."""

    store_bytes_per_s: float = Field(gt=0)
    """GPU to DRAM."""

    load_latency_s: float = Field(default=0.0005, ge=0)
    """Seconds before the first byte of a load arrives."""

    max_step_tokens: int = Field(default=8192, gt=0)
    """Tokens of one step, prefill and decode together."""

    max_running: int = Field(default=1024, gt=0)
    """Turns that run at once."""

    is_async: bool = False
    """vLLM's async scheduling: a step is put together while the one before it runs, so that who
    arrives waits one step longer."""

    request_s: float = Field(default=0.0, ge=0)
    """Seconds from client to engine and back, of a request of no tokens."""

    request_token_s: float = Field(default=0.0, ge=0)
    """And for each token of its prompt: reading the text, rendering the tokens."""

    def prefill_s(self, num_tokens: float, position: float) -> float:
        """(n + n·pos/x0)/R seconds for `num_tokens` whose mean position is `position`."""
        slowed = num_tokens + num_tokens * position / self.prefill_x0_tokens
        return slowed / self.prefill_tokens_per_s

    @property
    def read_s_per_token(self) -> float:
        """Seconds that a decode step takes longer for each token of KV it reads."""
        return self.bytes_per_token / self.kv_read_bytes_per_s


PROFILES: Final = {
    "70b": Profile(
        name="70b",  # Llama 3 70B, 80 layers, 64 heads, 8 KV heads, bf16, on 8 H100
        pool_tokens=1_416_000,
        bytes_per_token=2 * 80 * 8 * 128 * 2,
        prefill_tokens_per_s=8_000,
        prefill_x0_tokens=53_000,
        decode_step_s=0.010,
        kv_read_bytes_per_s=READ_SHARE * 8 * _H100_BYTES_PER_S,
        load_bytes_per_s=8 * 50e9,
        store_bytes_per_s=8 * 50e9,
    ),
    "8b": Profile(
        name="8b",  # Llama 3 8B, 32 layers, 32 heads, 8 KV heads, bf16, on one H100
        pool_tokens=427_000,
        bytes_per_token=2 * 32 * 8 * 128 * 2,
        prefill_tokens_per_s=40_000,
        prefill_x0_tokens=30_000,
        decode_step_s=0.0084,
        kv_read_bytes_per_s=READ_SHARE * _H100_BYTES_PER_S,
        load_bytes_per_s=50e9,
        store_bytes_per_s=50e9,
    ),
    "gb200": Profile(
        # 70B in bf16 on the two B200 (186 GB, 8 TB/s each) of a GB200 superchip; 90 % of the memory
        # less 141 GB of weights. NVLink-C2C: 900 GB/s both ways, 450 GB/s each. The decode step is
        # 141 GB read at 75 % of 16 TB/s.
        name="gb200",
        pool_tokens=592_000,
        bytes_per_token=2 * 80 * 8 * 128 * 2,
        prefill_tokens_per_s=MFU * 2 * _B200_FLOPS / (2 * 70.6e9),
        prefill_x0_tokens=53_000,
        decode_step_s=0.0118,
        kv_read_bytes_per_s=READ_SHARE * 2 * _B200_BYTES_PER_S,
        load_bytes_per_s=450e9,
        store_bytes_per_s=450e9,
    ),
}


def find_profile(name: str) -> Profile:
    """A published profile by name, or one from a JSON file. Raises ConfigError."""
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name)
    if path.suffix != ".json":
        known = ", ".join(PROFILES)
        raise ConfigError(f"--profile {name}: not known; give {known}, or a .json file")
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--profile {path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise ConfigError(
            f"--profile {path}: {place}: {problem['msg']}; the fields are "
            + ", ".join(Profile.model_fields)
        ) from None
