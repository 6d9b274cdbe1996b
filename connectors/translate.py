"""The one file that knows both vocabularies: vLLM's config, requests and cache specs, and ours."""

from __future__ import annotations

import re
from typing import Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import Request

from agentkv.events import TurnTag, read_tag
from agentkv.geometry import KvFootprint, KvGroup
from agentkv.scope import scope_of_salt
from agentkv.session_names import given_name

_ADDED = re.compile(r"^\d+_|-[0-9a-f]{8}$")
_PART_NUMBER = {"cmpl-": re.compile(r"-\d+$"), "resp_": re.compile(r"_\d+$")}


def footprint_of(kv_cache_config: KVCacheConfig) -> KvFootprint:
    """KV bytes as a function of the context, from what the engine itself allocates per block.

    Right for GQA and MLA (bytes per token), sliding and chunked windows (bounded positions) and
    recurrent layers (a fixed state).
    """
    fixed_bytes = 0
    groups: list[KvGroup] = []
    for group in kv_cache_config.kv_cache_groups:
        for spec, num_layers in _layer_specs(group.kv_cache_spec, len(group.layer_names)):
            if isinstance(spec, MambaSpec):
                fixed_bytes += spec.page_size_bytes * num_layers
            else:
                groups.append(
                    KvGroup(
                        bytes_per_token=spec.page_size_bytes * num_layers / spec.block_size,
                        window_tokens=_window_tokens(spec),
                    )
                )
    return KvFootprint(fixed_bytes=fixed_bytes, groups=tuple(groups))


def _layer_specs(spec: KVCacheSpec, num_layers: int) -> list[tuple[KVCacheSpec, int]]:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return [(layer_spec, 1) for layer_spec in spec.kv_cache_specs.values()]
    return [(spec, num_layers)]


def _window_tokens(spec: KVCacheSpec) -> int | None:
    if isinstance(spec, SlidingWindowSpec):
        return int(spec.sliding_window)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return int(spec.attention_chunk_size)
    return None


def tag_of(request: Request) -> tuple[TurnTag, tuple[str, ...]]:
    """The request's tag, and what was ignored in it."""
    sampling = request.sampling_params
    extra_args: Any = sampling.extra_args if sampling is not None else None
    return read_tag(request.kv_transfer_params, extra_args)


def name_session(request: Request, tag: TurnTag) -> str | None:
    """The session's name, as the client gave it.

    One that only the tag has is given to the request: vLLM's own KV events name a block's session.
    One that is not the client's to give is taken from it.
    """
    name = given_name(request.session_id or tag.session_id)
    request.session_id = name
    return name


def scope_of(request: Request) -> str:
    """Separates tenants: sessions of different cache salts never meet. The salt is not kept."""
    return scope_of_salt(request.cache_salt)


def reply_id_of(request: Request) -> str:
    """The id that a client sees in the reply to a request.

    vLLM's server adds to it: "0_" for one of several samples, "-0" for one of several prompts of a
    completion, and eight random digits so that two clients' ids never meet.
    """
    reply_id = _ADDED.sub("", str(request.request_id))
    number = _PART_NUMBER.get(reply_id[:5])
    return number.sub("", reply_id) if number is not None else reply_id


def computed_hashes(request: Request, tokens_per_hash: int) -> list[bytes]:
    """Hashes of the request's full blocks whose KV was computed."""
    num_blocks = min(request.num_computed_tokens, request.num_tokens) // tokens_per_hash
    return list(request.block_hashes[:num_blocks])
