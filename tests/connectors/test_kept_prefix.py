"""What is kept of a finished request: enough for a load, no more than its bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import blocks, prompt
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from agentkv.connectors.kept_prefix import KeptPrefix, KeptPrefixes, keep
from agentkv.sessions import SessionKey

BLOCK = 16


def finished(num_blocks: float, *, num_computed: int | None = None, **fields: Any) -> Request:
    init_none_hash(sha256)
    request = Request(
        "r",
        prompt(1, blocks(num_blocks)),
        SamplingParams(max_tokens=9, **fields.pop("sampling", {})),
        None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
        **fields,
    )
    request.num_computed_tokens = request.num_tokens if num_computed is None else num_computed
    return request


@pytest.mark.parametrize(
    ("num_blocks", "num_computed", "num_kept"),
    [(4, None, 4), (4.5, None, 4), (4, 63, 3), (4, 9999, 4), (4, 16, 1)],
)
def test_only_full_computed_blocks_are_kept(
    num_blocks: float, num_computed: int | None, num_kept: int
) -> None:
    request = finished(num_blocks, num_computed=num_computed)
    kept = keep(request, BLOCK)
    assert kept is not None
    assert len(kept.token_ids) == num_kept * BLOCK
    assert list(kept.block_hashes) == list(request.block_hashes[:num_kept])


@pytest.mark.parametrize("num_computed", [0, 15])
def test_without_a_full_block_nothing_is_kept(num_computed: int) -> None:
    assert keep(finished(4, num_computed=num_computed), BLOCK) is None


def test_a_request_that_may_not_read_the_cache_is_not_kept() -> None:
    assert keep(finished(4, sampling={"prompt_logprobs": 1}), BLOCK) is None


def test_generated_tokens_are_kept_too() -> None:
    request = finished(1.5)
    request.append_output_token_ids(prompt(2, 20))
    request.num_computed_tokens = request.num_tokens - 1
    kept = keep(request, BLOCK)
    assert kept is not None and list(kept.token_ids[24:]) == prompt(2, 20)[:8]


def test_what_the_request_becomes_later_does_not_matter() -> None:
    request = finished(2)
    kept = keep(request, BLOCK)
    request.append_output_token_ids(prompt(2, 40))
    assert kept is not None
    assert len(kept.token_ids) == 32 and len(kept.block_hashes) == 2


def test_a_stand_in_finds_the_same_blocks_all_of_them() -> None:
    """It has a token more than the blocks: vLLM computes the last token of every prompt."""
    request = finished(3, cache_salt="salt")
    kept = keep(request, BLOCK)
    assert kept is not None
    stand_in = kept.make_request("stand-in")
    assert stand_in.num_tokens == 3 * BLOCK + 1
    assert list(stand_in.block_hashes) == list(request.block_hashes)
    assert stand_in.cache_salt == "salt" and stand_in.request_id == "stand-in"
    stand_in.block_hashes.clear()
    assert len(kept.block_hashes) == 3, "the next stand-in has them still"


# --- the bound ---


def key(name: object) -> SessionKey:
    return SessionKey("", str(name))


def prefix(num_tokens: int) -> KeptPrefix:
    return KeptPrefix(range(num_tokens), (), None, None)


def test_the_oldest_go_when_there_is_too_much() -> None:
    kept = KeptPrefixes(max_tokens=100)
    for name in "abc":
        kept.put(key(name), prefix(40))
    assert kept.get(key("a")) is None and len(kept) == 2
    kept.put(key("b"), prefix(40))
    kept.put(key("d"), prefix(40))
    assert kept.get(key("c")) is None, "b was put again after it"
    assert kept.get(key("b")) is not None


def test_the_last_one_is_kept_however_long() -> None:
    kept = KeptPrefixes(max_tokens=100)
    kept.put(key("a"), prefix(40))
    kept.put(key("b"), prefix(1000))
    assert kept.get(key("b")) is not None and len(kept) == 1


def test_a_later_prefix_replaces_the_sessions_former_one() -> None:
    kept = KeptPrefixes(max_tokens=100)
    for num_tokens in (90, 80, 70):
        kept.put(key("a"), prefix(num_tokens))
    kept.put(key("b"), prefix(30))
    assert len(kept) == 2


def test_ended_sessions_are_dropped() -> None:
    kept = KeptPrefixes(max_tokens=1000)
    for name in "abc":
        kept.put(key(name), prefix(10))
    for name in ("a", "c", "nobody"):
        kept.drop(key(name))
    assert len(kept) == 1 and kept.get(key("b")) is not None
    kept.clear()
    assert len(kept) == 0


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 60))), max_size=40
    )
)
def test_no_order_of_calls_exceeds_the_bound_or_miscounts(
    calls: list[tuple[int, int | None]],
) -> None:
    kept = KeptPrefixes(max_tokens=100)
    for name, num_tokens in calls:
        if num_tokens is None:
            kept.drop(key(name))
        else:
            kept.put(key(name), prefix(num_tokens))
            assert kept.get(key(name)) is not None
        total = sum(len(each.token_ids) for each in kept._prefixes.values())
        assert total == kept._num_tokens
        assert total <= 100 or len(kept) == 1
