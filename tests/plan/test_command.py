"""`agentkv plan` from its options to its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from passport.configs import LLAMA_70B
from sim.builders import made_up_trace
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.errors import ConfigError
from agentkv.sim.trace import TraceSession


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["plan", *arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**LLAMA_70B, "max_position_embeddings": 131_072}))
    return str(path.parent)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(_rows(made_up_trace())))
    return str(path)


def _rows(sessions: list[TraceSession]) -> list[str]:
    return [
        json.dumps(
            {
                **{"session_id": session.name, "turn": number, "src": "made-up"},
                **{"input_tokens": turn.prompt_tokens, "output_tokens": turn.output_tokens},
                **{"prefix_turn": turn.prefix_turn, "prefix_tokens": turn.prefix_tokens},
                **{"shared_prefix_tokens": session.shared_tokens, "wait_s": turn.wait_s},
            }
        )
        + "\n"
        for session in sessions
        for number, turn in enumerate(session.turns)
    ]


def test_the_documents_node_in_words_and_in_json(model: str, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    options = "--weights 140GB --runtime 4.5GB --shared 24576 --wait 0.5:1,0.9:30"
    text = run(model, *options.split(), "--tier", "dram:2TB", "--json", str(target))
    found = json.loads(target.read_text())

    assert "122 sessions in GPU memory" in text
    assert "464 GB" in text
    assert found["sessions"] == 122
    assert found["tiers"][0]["tier"] == "dram"
    assert found["simulated"] is None


def test_the_defaults_are_the_documents_and_need_nothing_but_a_model(model: str) -> None:
    assert "fit        36 sessions" in run(model)


def test_pictures_are_made(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    run(model, "--plots", str(folder))

    made = {path.name: path.read_bytes()[:8] for path in folder.iterdir()}
    assert set(made) == {"memory_wall.png", "regime_map.png", "envelope.png"}
    assert set(made.values()) == {b"\x89PNG\r\n\x1a\n"}


def test_a_trace_tells_contexts_waits_and_what_is_shared(
    model: str, trace: str, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"
    run(model, "--trace", trace, "--json", str(target))
    found = json.loads(target.read_text())
    sessions = made_up_trace()
    waits = [turn.wait_s or 0.0 for session in sessions for turn in session.turns[:-1]]

    assert found["demand"]["shared_tokens"] == 500
    assert found["waits"]["mean"] == pytest.approx(sum(waits) / len(waits))
    assert found["capacity"]["sure_sessions"] < found["sessions"]
    assert len(found["tiers"]) == 3


def test_the_node_is_simulated(model: str, trace: str, tmp_path: Path) -> None:
    target, pictures = tmp_path / "plan.json", tmp_path / "pictures"
    options = "--sessions 4,8 --hours 0.02 --policy lru --tier dram:1TB --tier ssd:2TB"
    text = run(
        *(model, "--trace", trace, "--simulate", trace, *options.split()),
        *("--json", str(target), "--plots", str(pictures)),
    )
    four, eight = json.loads(target.read_text())["simulated"]

    assert "TTFT p50" in text
    assert (four["sessions"], eight["sessions"]) == (4, 8)
    assert eight["turns_per_hour"] > 1.2 * four["turns_per_hour"]
    assert 0 < four["ttft_p50_s"] <= four["ttft_p95_s"] <= four["ttft_p99_s"]
    assert (pictures / "simulated" / "resume_ttft.png").is_file()


def test_replicas_share_the_agents(model: str, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    options = "--count 16 --tp 8 --sessions 8 --hours 0.02 --policy lru"
    run(model, "--simulate", trace, *options.split(), "--json", str(target))
    (only,) = json.loads(target.read_text())["simulated"]

    assert only["sessions"] == 8
    assert only["num_resumes"] * 1.9 < only["turns_per_hour"] * 0.02


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--accelerator h1000", "nearest: h100"),
        ("--count 6 --tp 4", "--count 6: .* give 4"),
        ("--count 1 --accelerator l40s", "--tp 1: .* give --tp x --pp of 4"),
        ("--tp 3", "--tp 3"),
        ("--context 200k", "--context 200k: give one number"),
        ("--context 200000", "give at most 129024"),
        ("--shared 40000", "give at most 32768"),
        ("--headroom 1", "--headroom 1: .* below 1"),
        ("--dram-price 1", "--dram-price 1: .* below 1"),
        ("--mfu 35", "--mfu 35: .* as 0.35"),
        ("--hbm 80", "--hbm"),
        ("--runtime 100GB", "--runtime"),
        ("--link pcie6x", "nearest: pcie"),
        ("--sessions 5", "--simulate"),
        ("--simulate nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_wrong_options_are_one_line(model: str, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        run(model, *options.split())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("option", ["--context 1000", "--wait 5"])
def test_a_trace_and_what_it_tells_are_not_both_given(model: str, trace: str, option: str) -> None:
    with pytest.raises(ConfigError, match="--trace has its own"):
        run(model, "--trace", trace, *option.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [("--policy lrv", "did you mean lru"), ("--sessions 0", "as 20,40,80")],
)
def test_a_wrong_simulation_is_refused(model: str, trace: str, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(model, "--simulate", trace, *options.split())
