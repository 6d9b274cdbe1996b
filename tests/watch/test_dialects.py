"""Each dialect as its clients write it, and what no dialect may do."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.watch.dialect_table import DIALECTS
from agentkv.watch.dialects import Hints, read_dialects

# name of the row → a body that speaks it, and what it says
EXAMPLES: dict[str, tuple[dict[str, Any], Hints]] = {
    "continuum": (
        {
            "vllm_xargs": {
                "job_id": "j1",
                "this_func_call": "pytest",
                "last_func_call": "ls",
                "is_last_step": "false",
            }
        },
        Hints(session_id="j1", tool="pytest"),
    ),
    "tokencake": (
        {"vllm_xargs": {"tokencake.lifecycle_id": "tc-1", "tokencake.importance": 0.5}},
        Hints(session_id="tc-1", wishes=1),
    ),
    "agentinfer": (
        {
            "vllm_xargs": {
                "agentic_context": json.dumps(
                    {"session_id": "s", "program_id": "p", "parent_program_id": "p0"}
                )
            }
        },
        Hints(session_id="p"),
    ),
    "thunderagent": ({"program_id": "p", "docker_ids": ["d"]}, Hints(session_id="p")),
    "dynamo/agent_context": (
        {"nvext": {"agent_context": {"session_id": "s", "parent_session_id": "p"}}},
        Hints(session_id="s"),
    ),
    "dynamo/session_control": (
        {"nvext": {"session_control": {"session_id": "s", "action": "close", "timeout": 30}}},
        Hints(session_id="s", last_turn=True, wishes=1),
    ),
    "dynamo/agent_hints": (
        {"nvext": {"agent_hints": {"priority": 5, "osl": 1024, "speculative_prefill": True}}},
        Hints(wishes=1),
    ),
    "dynamo/cache_control": (
        {"nvext": {"cache_control": {"type": "ephemeral", "ttl": "5m"}}},
        Hints(wishes=1),
    ),
    "verl": (
        {
            "kv_transfer_params": {
                "agent_hint": {"schema_version": 1, "trajectory_id": "t", "kv_priority": 2}
            }
        },
        Hints(session_id="t", wishes=1),
    ),
    "evoke": (
        {"kv_transfer_params": {"evoke": {"source_type": "tool", "evoke_session": "e"}}},
        Hints(session_id="e"),
    ),
    "infercept": (
        {"vllm_xargs": {"api_exec_time": 1.5, "api_max_calls": 3}},
        Hints(expected_wait_s=1.5),
    ),
    "lmcache": (
        {"kv_transfer_params": {"lmcache_retention_ttl_sec": 90}},
        Hints(wishes=1),
    ),
    "vllm/kv_hints": (
        {
            "kv_hints": {
                "protocol_version": 1,
                "actions": [
                    {
                        "action_type": "kv.retain",
                        "payload": {
                            "scope": "request",
                            "directives": [
                                {"start": 0, "end": 9, "priority": 50, "duration": 20},
                                {"covers_output": True, "duration": 60},
                            ],
                        },
                    }
                ],
            }
        },
        Hints(wishes=3),
    ),
    "vllm/retention_directives": (
        {"retention_directives": [{"start": 0, "end": None, "priority": 80, "duration": 10}]},
        Hints(wishes=2),
    ),
    "trt-llm": (
        {
            "kv_cache_retention_config": {
                "token_range_retention_configs": [
                    {"token_start": 0, "priority": 35, "duration_ms": 1500}
                ],
                "decode_duration_ms": 1000,
            }
        },
        Hints(wishes=3),
    ),
    "anthropic/cache_control": (
        {
            "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [{"text": "y", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
                }
            ],
        },
        Hints(wishes=1),
    ),
    "openai/prompt_cache": (
        {"prompt_cache_retention": "24h", "prompt_cache_key": "k"},
        Hints(wishes=1),
    ),
}


def test_every_row_of_the_table_has_an_example() -> None:
    assert list(EXAMPLES) == [dialect.name for dialect in DIALECTS]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_dialect_is_understood(name: str) -> None:
    body, expected = EXAMPLES[name]
    assert read_dialects(body, {}) == replace(expected, seen=(name,))


@pytest.mark.parametrize("name", EXAMPLES)
def test_reading_changes_nothing_so_that_no_hint_reaches_the_prompt(name: str) -> None:
    body, _ = EXAMPLES[name]
    before = copy.deepcopy(body)
    read_dialects(body, {"x-agentkv-tool": "bash"})
    assert body == before


def test_an_ordinary_request_has_no_hints() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "bash"}}],
        "vllm_xargs": {"session_id": "s", "other": 1},
        "kv_transfer_params": {"do_remote_decode": True},
        "metadata": {"user_id": "jane"},
    }
    assert read_dialects(body, {"user-agent": "x"}) == Hints()
    assert read_dialects(None, {}) == Hints()


TAG = {"tool": "bash", "expected_wait_s": 12}
CARRIERS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "agentkv/kv_transfer_params": ({"kv_transfer_params": {"agentkv": TAG}}, {}),
    "agentkv/vllm_xargs": (
        {"vllm_xargs": {"agentkv.tool": "bash", "agentkv.expected_wait_s": 12}},
        {},
    ),
    "agentkv/body": ({"agentkv": TAG}, {}),
    "agentkv/header": ({}, {"X-AgentKV-Tool": "bash", "X-AgentKV-Expected-Wait-S": "12"}),
    "agentkv/metadata": (
        {"metadata": {"agentkv.tool": "bash", "agentkv.expected_wait_s": "12"}},
        {},
    ),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_tag_is_seen_in_whatever_carries_it(carrier: str) -> None:
    """A100: a hint that is sent arrives, and its source is counted."""
    body, headers = CARRIERS[carrier]
    expected = Hints(tool="bash", expected_wait_s=12, seen=(carrier,))
    assert read_dialects(body, headers) == expected


def test_all_sources_of_one_request_are_counted() -> None:
    bodies = [body for body, _ in CARRIERS.values()]
    body = {key: value for each in bodies for key, value in each.items()}
    assert read_dialects(body, CARRIERS["agentkv/header"][1]).seen == tuple(CARRIERS)


def marked(index: int) -> dict[str, Any]:
    """A conversation with the breakpoint on one of its messages."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": str(i)} for i in range(4)]
    blocks[index]["cache_control"] = {"type": "ephemeral"}
    return {"messages": [{"role": "user", "content": [block]} for block in blocks]}


def test_a_moving_breakpoint_says_the_same_each_turn() -> None:
    """A99: clients move the marker with every turn; where it is must not matter to us."""
    hints = read_dialects(marked(-1), {})
    assert hints == read_dialects(marked(-2), {})
    assert hints.seen == ("anthropic/cache_control",)


def test_the_object_wins_over_the_flat_form_as_in_the_engine() -> None:
    body = {
        "kv_transfer_params": {"agentkv": {"tool": "a"}},
        "vllm_xargs": {"agentkv.tool": "b"},
    }
    assert read_dialects(body, {"x-agentkv-tool": "c"}).tool == "a"


def test_our_own_tag_wins_over_others_and_fills_no_gap_of_theirs() -> None:
    body = {
        "kv_transfer_params": {"agentkv": {"session_id": "mine"}, "lmcache_retention_ttl_sec": 5},
        "vllm_xargs": {"job_id": "theirs", "this_func_call": "pytest"},
    }
    hints = read_dialects(body, {})
    assert (hints.session_id, hints.tool) == ("mine", "pytest")
    assert hints.seen == ("agentkv/kv_transfer_params", "continuum", "lmcache")


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ({"nvext": {"agent_hints": {"priority": 1, "mood": "good", "x": 1}}}, 2),
        ({"nvext": {"agent_hints": {"prefix_id": 7}}}, 1),
        ({"kv_transfer_params": {"agentkv": {"tol": "bash"}}}, 1),
        ({"kv_transfer_params": {"agentkv": {"timeout_s": "soon"}}}, 1),
        ({"vllm_xargs": {"job_id": 7, "anything": 1}}, 1),
        ({"vllm_xargs": {"api_exec_time": "a while"}}, 1),
        ({"vllm_xargs": {"api_exec_time": -1}}, 1),
        ({"vllm_xargs": {"api_exec_time": True}}, 1),
        ({"nvext": {"session_control": {"action": "explode"}}}, 1),
        ({"program_id": "p" * 257}, 1),
    ],
)
def test_what_is_not_understood_is_ignored_and_counted(body: dict[str, Any], ignored: int) -> None:
    hints = read_dialects(body, {})
    assert hints.ignored == ignored
    assert hints.tool is None


def test_a_wait_of_no_time_is_said_all_the_same() -> None:
    assert read_dialects({"agentkv": {"expected_wait_s": 0}}, {}).expected_wait_s == 0


def test_what_is_said_can_be_sent_on() -> None:
    body = json.loads(
        '{"agentkv": {"tool": "\\ud800x"}, "vllm_xargs": {"this_func_call": "\\udfff"}}'
    )
    tool = read_dialects(body, {}).tool
    assert tool is not None
    assert tool.encode() == b"?x"


@pytest.mark.parametrize("priority", [1e9, -1, "high", {}])
def test_a_wish_to_be_kept_steers_nothing_and_is_counted(priority: object) -> None:
    """Else whoever asks for most, on every request, would push all others out."""
    body = {
        "nvext": {"agent_hints": {"priority": priority}, "cache_control": {"ttl": "1h"}},
        "kv_transfer_params": {"lmcache_retention_ttl_sec": 1e6},
    }
    seen = ("dynamo/agent_hints", "dynamo/cache_control", "lmcache")
    assert read_dialects(body, {}) == Hints(seen=seen, wishes=3)


_NAMES = sorted({key for dialect in DIALECTS for key in dialect.keys})
_HOLDERS = (
    *("vllm_xargs", "kv_transfer_params", "nvext", "metadata", "agentkv", "kv_hints", "messages"),
    *("system", "tools", "agent_hints", "cache_control", "actions", "payload", "directives"),
    *("retention_directives", "kv_cache_retention_config", "tokencake", "content"),
)


@given(
    st.dictionaries(
        st.sampled_from(_HOLDERS),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from([*_HOLDERS, *_NAMES]), inner, max_size=4)
            ),
            max_leaves=30,
        ),
    ),
    st.dictionaries(st.sampled_from(["x-agentkv-tool", "X-AgentKV-", "x-agentkv-x"]), st.text()),
)
def test_requests_of_any_shape_do_not_raise(body: dict[str, Any], headers: dict[str, str]) -> None:
    hints = read_dialects(body, headers)
    assert hints.expected_wait_s is None or hints.expected_wait_s >= 0
