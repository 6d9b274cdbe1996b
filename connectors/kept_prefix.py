"""What of a finished request is needed to load its KV again without it: tokens, hashes, identity.

Why kept: the pool caches a block under the hash that the request gave it, and vLLM's own look-up
and allocation work on a request. Images and embeddings are not kept, the hashes carry them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from agentkv.sessions import SessionKey


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The computed full blocks of a finished request."""

    token_ids: Sequence[int]
    block_hashes: Sequence[Any]
    cache_salt: str | None
    lora_request: Any
    session_id: str | None = None

    def cut(self, num_blocks: int, tokens_per_hash: int) -> KeptPrefix:
        """Its first blocks."""
        return replace(
            self,
            token_ids=self.token_ids[: num_blocks * tokens_per_hash],
            block_hashes=self.block_hashes[:num_blocks],
        )

    def make_request(self, request_id: str) -> Request:
        """A request for just these blocks, never to be scheduled.

        It has a token more: vLLM never takes the last token of a prompt from a cache.
        """
        request = Request(
            request_id,
            [*self.token_ids, 0],
            SamplingParams(max_tokens=1),
            None,
            arrival_time=0.0,
            lora_request=self.lora_request,
            cache_salt=self.cache_salt,
            session_id=self.session_id,
        )
        request.block_hashes = list(self.block_hashes)
        return request


def keep(request: Request, tokens_per_hash: int) -> KeptPrefix | None:
    """What a prefetch needs of a request that ended; None if no full block was computed."""
    num_computed = min(request.num_computed_tokens, request.num_tokens)
    num_blocks = min(num_computed // tokens_per_hash, len(request.block_hashes))
    if num_blocks == 0 or request.skip_reading_prefix_cache:
        return None
    return KeptPrefix(
        token_ids=request.all_token_ids[: num_blocks * tokens_per_hash],
        block_hashes=request.block_hashes[:num_blocks],
        cache_salt=request.cache_salt,
        lora_request=request.lora_request,
        session_id=request.session_id,
    )


class KeptPrefixes:
    """The last prefix of each session, up to `max_tokens` in all; the oldest go first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._prefixes: OrderedDict[SessionKey, KeptPrefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prefixes)

    def get(self, key: SessionKey) -> KeptPrefix | None:
        return self._prefixes.get(key)

    def put(self, key: SessionKey, prefix: KeptPrefix) -> None:
        self.drop(key)
        self._prefixes[key] = prefix
        self._num_tokens += len(prefix.token_ids)
        while self._num_tokens > self._max_tokens and len(self._prefixes) > 1:
            self.drop(next(iter(self._prefixes)))

    def drop(self, key: SessionKey) -> None:
        prefix = self._prefixes.pop(key, None)
        if prefix is not None:
            self._num_tokens -= len(prefix.token_ids)

    def clear(self) -> None:
        self._prefixes.clear()
        self._num_tokens = 0
