"""How long KV of this model takes to compute and to load here: the ratio that all gains rest on.

What: on one server with native offloading, whose pool holds one context: a prompt that is computed
(cold), one whose KV comes back from DRAM, one whose KV is in the pool. The pool's time is what the
other two have in common, so recompute = cold - pool and reload = DRAM - pool. Medians of rounds.
Where: once in each run, before the replays; ends up in the provenance.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np

from agentkv.bench.replay_systems import NO_PLUGINS, Setup, native_transfer
from agentkv.demo.client import TurnRequest, TurnResult, send
from agentkv.demo.ratios import REST_S
from agentkv.demo.replay import REQUEST_TIMEOUT_S
from agentkv.demo.servers import Server, ServerSpec
from agentkv.demo.text import FillText

NUM_ROUNDS = 7
MAX_CONTEXT_TOKENS = 4_096
SPARE_TOKENS = 128  # for the template, the answer and the last block
FOUND_SHARE = 0.9  # a context counts as found from here on, as gone below the rest


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of contexts of `context_tokens`; seconds are medians of `rounds` rounds that were sound.

    `pool_s`: first-token time of a context whose KV is in the pool.
    """

    context_tokens: int
    rounds: int
    recompute_s: float | None
    reload_s: float | None
    pool_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """Recompute over reload; None where nothing was measured or reloading took no time."""
        if self.recompute_s is None or not self.reload_s or self.reload_s <= 0:
            return None
        return self.recompute_s / self.reload_s

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "recompute_over_reload": self.ratio}


def context_tokens(setup: Setup) -> int:
    """The context that is timed: the run's longest, 4,096 tokens at most."""
    return min(MAX_CONTEXT_TOKENS, setup.longest_tokens - SPARE_TOKENS)


def calibration_spec(setup: Setup) -> ServerSpec:
    """A server whose pool holds one context and whose DRAM holds all that are sent."""
    size = context_tokens(setup)
    block_size = setup.settings.block_size
    pool_tokens = -(-(size + SPARE_TOKENS) // block_size) * block_size
    num_bytes = pool_tokens * setup.model.kv_bytes_per_token
    return setup.spec(
        "calibration",
        pool_tokens,
        max_model_len=pool_tokens,
        max_num_seqs=1,
        kv_transfer=native_transfer(3 * (NUM_ROUNDS + 1) * num_bytes),
        environment=NO_PLUGINS,
    )


def calibrate(server: Server, fill: FillText, setup: Setup) -> Calibration:
    """Blocks for some seconds. Raises RequestError or httpx.HTTPError."""
    size = context_tokens(setup)
    time.sleep(REST_S)
    rounds = []
    with httpx.Client(base_url=server.url, timeout=REQUEST_TIMEOUT_S) as client:
        for number in range(NUM_ROUNDS + 1):
            text, other = (fill.cut(size, f"calibrate/{number}/{each}") for each in (0, 1))
            cold = _ask(client, f"{number}. {text}")
            _ask(client, f"Other {number}. {other}")
            from_dram = _ask(client, f"{number}. {text}")
            local = _ask(client, f"{number}. {text}")
            if number and _is_sound(cold, from_dram, local):
                rounds.append([each.ttft_s for each in (cold, from_dram, local)])
    time.sleep(REST_S)
    if not rounds:
        return Calibration(size, 0, None, None)
    cold_s, dram_s, local_s = np.median(np.array(rounds), axis=0)
    return Calibration(
        size, len(rounds), float(cold_s - local_s), float(dram_s - local_s), float(local_s)
    )


def _ask(client: httpx.Client, text: str) -> TurnResult:
    return send(client, TurnRequest(None, [{"role": "user", "content": text}], max_tokens=2))


def _is_sound(cold: TurnResult, from_dram: TurnResult, local: TurnResult) -> bool:
    wanted = FOUND_SHARE * cold.prompt_tokens
    is_gone = cold.cached_tokens < (1 - FOUND_SHARE) * cold.prompt_tokens
    return is_gone and from_dram.cached_tokens >= wanted and local.cached_tokens >= wanted
