"""A running server: what its numbers say is wrong is said, and nothing is where they are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentkv.doctor.checks import Check
from agentkv.doctor.live import live_checks
from agentkv.doctor.live_rules import exposed_name
from agentkv.doctor.prometheus_text import parse, total
from agentkv.metrics import ALL_METRICS

HEALTHY = """
# HELP vllm:prefix_cache_hits_total x
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 100000.0
vllm:prefix_cache_hits_total{engine="0"} 90000.0
vllm:request_success_total{engine="0",finished_reason="stop"} 200.0
agentkv:resumes_total{engine="0",tier="gpu"} 150.0
agentkv:resume_tokens_total{engine="0",source="gpu"} 90000.0
agentkv:resume_tokens_total{engine="0",source="recomputed"} 1000.0
agentkv:resume_tokens_total{engine="0",source="new"} 50000.0
agentkv:tier_available{engine="0",tier="ssd"} 1.0
agentkv:pressure{engine="0"} 0.1
"""
STATE = {
    "engines": [{"rank": 0, "pool_blocks": 100}],
    "endpoint": {"turns_tool": 180, "hints_seen": 5, "problems": 0},
}


def look(
    metrics: str = HEALTHY,
    *,
    before: str | None = None,
    state: dict[str, Any] = STATE,
    sessions: list[dict[str, Any]] | None = None,
    status: int = 200,
) -> dict[str, str]:
    """The checks' states by their names."""
    checks = checked(metrics, before=before, state=state, sessions=sessions, status=status)
    return {check.name: check.state.value for check in checks}


def checked(
    metrics: str = HEALTHY,
    *,
    before: str | None = None,
    state: dict[str, Any] = STATE,
    sessions: list[dict[str, Any]] | None = None,
    status: int = 200,
) -> list[Check]:
    texts = iter([metrics if before is None else before, metrics])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=next(texts))
        if request.url.path.endswith("/state"):
            return httpx.Response(status, json=state if status == 200 else {})
        return httpx.Response(200, json={"sessions": sessions or []})

    transport = httpx.MockTransport(answer)
    return list(live_checks("http://x:1/v1", "k", transport=transport, wait=lambda s: None))


def test_a_healthy_server_is_all_well() -> None:
    found = look()
    assert set(found.values()) == {"ok"}
    assert {"server", "resumes", "prefix hits", "tiers", "sessions", "faults"} == set(found)


def test_of_few_requests_nothing_is_judged() -> None:
    text = (
        'agentkv:resume_tokens_total{source="recomputed"} 100.0\nvllm:request_success_total 3.0\n'
    )
    assert look(text) == {"server": "ok", "faults": "ok"}


ILL: list[tuple[str, str, str, str]] = [
    ('source="recomputed"} 1000', 'source="recomputed"} 30000', "resumes", "warn"),
    ('source="recomputed"} 1000', 'source="recomputed"} 300000', "resumes", "fail"),
    ('tier="ssd"} 1.0', 'tier="ssd"} 0.0', "tiers", "fail"),
    ("", 'agentkv:tier_failures_total{tier="ssd",reason="stalled"} 3\n', "tiers", "warn"),
    ("", 'agentkv:load_failures_total{reason="checksum"} 3\n', "loads", "warn"),
    ("", "agentkv:load_timeouts_total 3\n", "loads", "warn"),
    (
        "",
        'agentkv:prefetch_outcomes_total{outcome="lost"} 30\n'
        'agentkv:prefetch_outcomes_total{outcome="useful"} 20\n',
        "prefetches",
        "warn",
    ),
    ('tier="gpu"} 150', 'tier="gpu"} 10', "sessions", "warn"),
    ("", "vllm:kv_offload_store_bytes_total 9e9\n", "dram", "warn"),
    ("", "agentkv:tag_problems_total 2\n", "hints", "warn"),
    ("", 'agentkv:faults_total{where="decide"} 2\n', "faults", "fail"),
]


@pytest.mark.parametrize(("old", "new", "name", "state"), ILL)
def test_what_is_wrong_is_said(old: str, new: str, name: str, state: str) -> None:
    text = HEALTHY.replace(old, new) if old else HEALTHY + new
    assert look(text)[name] == state
    assert [each for each, is_so in look(text).items() if is_so == "fail"] in ([], [name])


def test_a71_a_tier_that_is_only_written_to_is_named() -> None:
    written = 'agentkv:demoted_blocks_total{tier="ssd",reason="wait"} 900\n'
    lacking = HEALTHY.replace('source="recomputed"} 1000', 'source="recomputed"} 3000') + written
    risen = 'agentkv:promoted_blocks_total{tier="ssd",purpose="turn"} 1\n'
    assert look(lacking)["below dram"] == "warn"
    assert "below dram" not in look(lacking + risen)
    assert "below dram" not in look(HEALTHY + written), "all came from faster tiers"
    few = lacking.replace('tier="gpu"} 150', 'tier="gpu"} 49')
    assert "below dram" not in look(few), "too few resumes to judge by"
    other = lacking + risen.replace("ssd", "redis")
    assert look(other)["below dram"] == "warn"


@pytest.mark.parametrize(("in_api", "in_engine"), [(3, 3), (3, 1), (0, 3), (3, 0)])
def test_a_key_that_two_processes_did_not_understand_is_one(in_api: int, in_engine: int) -> None:
    state = {**STATE, "endpoint": {**STATE["endpoint"], "hints_ignored": in_api}}
    checks = checked(f"{HEALTHY}agentkv:tag_problems_total {in_engine}\n", state=state)
    [hints] = [check for check in checks if check.name == "hints"]
    assert hints.said.startswith("3 keys")


def test_a_hit_rate_that_falls_is_said() -> None:
    later = HEALTHY.replace("100000.0", "110000.0").replace(
        'hits_total{engine="0"} 90000', 'hits_total{engine="0"} 91000'
    )
    assert look(later, before=HEALTHY)["prefix hits"] == "warn"
    steady = HEALTHY.replace("100000.0", "110000.0").replace(
        'hits_total{engine="0"} 90000', 'hits_total{engine="0"} 99000'
    )
    assert look(steady, before=HEALTHY)["prefix hits"] == "ok"


def test_too_little_room_is_told_with_how_much_is_live() -> None:
    short = HEALTHY.replace('source="recomputed"} 1000', 'source="recomputed"} 30000')
    many = [{"context_tokens": 1600}] * 5
    assert look(short, sessions=many)["room"] == "warn"
    assert "room" not in look(short, sessions=many[:1])
    assert "room" not in look(HEALTHY, sessions=many)


@pytest.mark.parametrize(
    ("status", "state"), [(200, "ok"), (401, "fail"), (404, "fail"), (503, "warn")]
)
def test_a_server_that_does_not_tell_its_state(status: int, state: str) -> None:
    assert look(status=status)["server"] == state


def test_a_server_that_is_not_there_is_one_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    raising: Callable[[httpx.Request], httpx.Response] = refuse
    [check] = live_checks("http://x", None, transport=httpx.MockTransport(raising))
    assert check.state.value == "fail" and "refused" in check.said


def test_every_metric_that_is_read_is_one_of_ours() -> None:
    names = {exposed_name(metric) for metric in ALL_METRICS}
    assert {name for name in parse(HEALTHY) if name.startswith("agentkv:")} <= names


def test_metrics_text_with_quotes_timestamps_and_rubbish_is_read() -> None:
    text = 'a{x="q\\"}{,",y="2"} 1.5 1700000000\na{x="z"} +Inf\nb NaN\n# c 1\nd{ 2\na{y="2"} 2\n'
    assert total(parse(text), "a", y="2") == 3.5
