"""A server with `--kv-connector agentkv`, used over HTTP as agents use it."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.otlp import Collector, attributes, collecting
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.doctor import live

from .server import API_SERVER, Server, serving

MESSAGES = [
    {"role": "system", "content": "call the tool and run the tests again " * 4},
    {"role": "user", "content": "run the tests"},
]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(model: Path, engine_lock: None, folder: Path, traces: Collector) -> Iterator[Server]:
    config = folder / "agentkv.yaml"
    config.write_text(f"dram: {{size_bytes: 16MiB}}\nledger: {{path: {folder}/ledger.jsonl}}\n")
    flags = ("--model", str(model), "--kv-connector", "agentkv", "--agentkv-config", str(config))
    tracing = ("--otlp-traces-endpoint", traces.url)
    with serving((*API_SERVER, *flags, *tracing), folder / "server.log") as server:
        yield server


def chat(server: Server, session: str, messages: list[dict[str, str]], **body: Any) -> str:
    answer = server.post(
        "/v1/chat/completions",
        {"messages": messages, **GREEDY, **body},
        **{"X-Session-ID": session},
    )
    content: str = answer["choices"][0]["message"]["content"]
    return content


def stream(server: Server, session: str, messages: list[dict[str, str]]) -> str:
    body = {"model": "tiny", "messages": messages, "stream": True, **GREEDY}
    headers = {"X-Session-ID": session}
    with server.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as lines:
        lines.raise_for_status()
        events = [line.removeprefix("data: ") for line in lines.iter_lines() if line]
    assert events.pop() == "[DONE]"
    deltas = (json.loads(event)["choices"][0]["delta"] for event in events)
    return "".join(delta.get("content") or "" for delta in deltas)


def next_turn(messages: list[dict[str, str]], answer: str) -> list[dict[str, str]]:
    tool_output = {"role": "user", "content": "3 tests failed, run the tests again"}
    return [*messages, {"role": "assistant", "content": answer}, tool_output]


def ledger(folder: Path, session: str) -> list[dict[str, Any]]:
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["session_id"] == session]


def test_two_turns_of_a_chat_streamed_or_not(server: Server, folder: Path) -> None:
    resumes_before = server.metric("agentkv:resumes_total")
    first = chat(server, "plain", MESSAGES)
    second = chat(server, "plain", next_turn(MESSAGES, first))
    assert stream(server, "streamed", MESSAGES) == first
    assert stream(server, "streamed", next_turn(MESSAGES, first)) == second
    assert len(first) > 5 and first != second
    for session in ("plain", "streamed"):
        kinds = [record["kind"] for record in ledger(folder, session)]
        assert kinds == ["pause", "resume", "pause"]
        (resume,) = (r for r in ledger(folder, session) if r["kind"] == "resume")
        assert resume["gpu_hit_tokens"] > 0
        assert resume["recomputed_tokens"] == 0
    assert server.metric("agentkv:resumes_total", tier="gpu") == resumes_before + 2


def test_the_metrics_add_up(server: Server) -> None:
    before = {
        name: server.metric(name)
        for name in (
            "agentkv:decisions_total",
            "agentkv:resumes_total",
            "agentkv:wait_seconds_count",
            "agentkv:resume_ttft_seconds_count",
            "agentkv:resume_ttft_seconds_sum",
            "vllm:time_to_first_token_seconds_sum",
        )
    }
    for name in ("a", "b", "c"):
        answer = chat(server, f"sums-{name}", MESSAGES)
        chat(server, f"sums-{name}", next_turn(MESSAGES, answer))
    chat(server, "flush", MESSAGES)  # vLLM hands the numbers of a step over in the next one.
    after = {name: server.metric(name) - value for name, value in before.items()}
    assert after["agentkv:resumes_total"] == after["agentkv:wait_seconds_count"] == 3
    assert after["agentkv:decisions_total"] >= 6
    assert after["agentkv:resume_ttft_seconds_count"] == 3
    of_resumes_s = after["agentkv:resume_ttft_seconds_sum"]
    assert 0 < of_resumes_s < after["vllm:time_to_first_token_seconds_sum"], "of all 7 requests"
    of_pool = server.metric("agentkv:resume_ttft_seconds_count", source="gpu")
    assert of_pool == server.metric("agentkv:resume_ttft_seconds_count") > 0
    sources = ("gpu", "dram", "recomputed", "new")
    tokens = {s: server.metric("agentkv:resume_tokens_total", source=s) for s in sources}
    assert tokens["gpu"] > 0 and tokens["new"] > 0 and tokens["dram"] == tokens["recomputed"] == 0
    assert server.metric("agentkv:faults_total") == 0
    assert server.metric("vllm:kv_offload_store_bytes_total") > 0


def test_the_gauges_are_refreshed_while_the_server_works(server: Server) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        chat(server, "gauge", MESSAGES)
        num_paused = server.metric("agentkv:sessions", state="paused")
        states = ("used", "kept", "free")
        blocks = {s: server.metric("agentkv:pool_blocks", state=s) for s in states}
        if num_paused >= 1 and sum(blocks.values()) == 64 and blocks["kept"] > 0:
            return
        time.sleep(0.3)
    raise AssertionError(f"{num_paused} paused sessions, blocks {blocks}")


TAG = {"tool": "bash", "command": "pytest -q", "expected_wait_s": 12}
GOOD_TAGS: dict[str, dict[str, Any]] = {
    "object": {"kv_transfer_params": {"agentkv": TAG}},
    "flat": {"vllm_xargs": {f"agentkv.{key}": value for key, value in TAG.items()}},
}
BAD_TAGS: dict[str, dict[str, Any]] = {
    "not an object": {"kv_transfer_params": {"agentkv": "bash"}},
    "unknown key": {"kv_transfer_params": {"agentkv": {"tol": "bash"}}},
    "negative time": {"kv_transfer_params": {"agentkv": {"expected_wait_s": -1}}},
    "flat nonsense": {"vllm_xargs": {"agentkv.expected_wait_s": "soon"}},
}


@pytest.mark.parametrize("carrier", GOOD_TAGS)
def test_a_tag_reaches_the_decision(server: Server, folder: Path, carrier: str) -> None:
    tags, problems = (server.metric(f"agentkv:{n}_total") for n in ("tags", "tag_problems"))
    chat(server, f"tag-{carrier}", MESSAGES, **GOOD_TAGS[carrier])
    chat(server, "flush", MESSAGES)
    assert server.metric("agentkv:tags_total") == tags + 1
    assert server.metric("agentkv:tag_problems_total") == problems
    (pause,) = ledger(folder, f"tag-{carrier}")
    assert pause["tool"] == "bash"
    assert 1 < pause["estimate_p50_s"] < 60, "the client's own estimate was not used"


@pytest.mark.parametrize("carrier", BAD_TAGS)
def test_a_malformed_tag_is_counted_and_changes_nothing(
    server: Server, folder: Path, carrier: str
) -> None:
    problems = server.metric("agentkv:tag_problems_total")
    answer = chat(server, f"bad-{carrier}", MESSAGES, **BAD_TAGS[carrier])
    assert answer == chat(server, "untagged", MESSAGES)
    assert server.metric("agentkv:tag_problems_total") == problems + 1
    assert [record["kind"] for record in ledger(folder, f"bad-{carrier}")] == ["pause"]


def test_the_doctor_reads_this_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_BETWEEN_S", 0.0)
    chat(server, "bad-for-the-doctor", MESSAGES, **BAD_TAGS["unknown key"])
    chat(server, "flush", MESSAGES)
    url = f"{server.client.base_url}/v1"
    done = CliRunner().invoke(build_app(), ["doctor", "--url", url, "--json", "-"])
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.exit_code == 0, "what it found is to be warned of, and no fault"
    assert found["server"]["said"] == "agentkv answers, 1 engine"
    assert found["faults"]["state"] == "ok"
    keys = server.metric("agentkv:tag_problems_total")
    assert found["hints"]["state"] == "warn" and keys > 0
    assert found["hints"]["said"].startswith(f"{keys:,.0f} keys of tags")


def test_a_last_turn_ends_its_session(server: Server, folder: Path) -> None:
    chat(server, "ending", MESSAGES, kv_transfer_params={"agentkv": {"last_turn": True}})
    assert [record["kind"] for record in ledger(folder, "ending")] == ["end"]


def test_completions_take_token_ids_and_the_header_too(server: Server, folder: Path) -> None:
    body = {"prompt": list(range(4, 80)), **GREEDY}
    first = server.post("/v1/completions", body, **{"X-Session-ID": "ids"})
    assert first["choices"][0]["text"]
    assert [record["kind"] for record in ledger(folder, "ids")] == ["pause"]


def test_the_traces_of_two_turns_tell_of_the_pause_between_them(
    server: Server, traces: Collector
) -> None:
    ids = {turn: f"{turn + 0xA0:032x}" for turn in (1, 2)}
    messages, answer = MESSAGES, ""
    for trace_id in ids.values():
        body = {"messages": messages, **GREEDY}
        named = {"X-Session-ID": "traced", "traceparent": f"00-{trace_id}-{7:016x}-01"}
        reply = server.post("/v1/chat/completions", body, **named)
        answer = reply["choices"][0]["message"]["content"]
        messages = next_turn(messages, answer)

    def of(turn: int) -> Callable[[Any], bool]:
        return lambda span: span.trace_id.hex() == ids[turn]

    pause = traces.wait_for("agentkv.pause", of(1))
    resume = traces.wait_for("agentkv.resume", of(2))
    own = traces.wait_for("llm_request", of(2))
    assert own.parent_span_id == resume.parent_span_id == bytes(7) + b"\x07", "siblings"
    assert [link.span_id for link in resume.links] == [pause.span_id]
    assert attributes(pause)["agentkv.action"] == "hold"
    assert attributes(resume)["agentkv.tokens.gpu"] > 0
    assert 0 < attributes(resume)["agentkv.wait.actual_s"] < 60
