"""`agentkv simulate` from its options to its files."""

import json
from pathlib import Path

import pytest
from sim.builders import made_up_trace, small_profile
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.errors import ConfigError
from agentkv.sim.trace import TraceSession


def _trace_file(folder: Path, sessions: list[TraceSession]) -> Path:
    rows = []
    for session in sessions:
        for number, turn in enumerate(session.turns):
            rows.append(
                {
                    **{"session_id": session.name, "turn": number, "src": "made-up"},
                    **{"input_tokens": turn.prompt_tokens, "output_tokens": turn.output_tokens},
                    **{"prefix_turn": turn.prefix_turn, "prefix_tokens": turn.prefix_tokens},
                    "shared_prefix_tokens": session.shared_tokens,
                    "wait_s": turn.wait_s,
                    "tools": [{"name": turn.tool, "head": turn.command}],
                }
            )
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    profile = tmp_path / "node.json"
    profile.write_text(small_profile().model_dump_json())
    trace = _trace_file(tmp_path, made_up_trace())
    text = f"simulate {trace} --profile {profile} --hours 0.01 --seeds 2 --block-tokens 64"
    return text.split()


def test_a_row_for_every_run_and_the_pictures(command: list[str], tmp_path: Path) -> None:
    rows_file, pictures = tmp_path / "rows.json", tmp_path / "pictures"
    options = f"--policy lru,break_even --oversubscription 2 --dram 0,1 --json {rows_file}"
    result = CliRunner().invoke(build_app(), [*command, *options.split(), "--plots", str(pictures)])
    assert result.exit_code == 0, result.output
    rows = json.loads(rows_file.read_text())
    assert len(rows) == 2 * 2 * 2
    wanted = {"policy", "oversubscription", "dram", "x", "seed", "turns", "recomputed_tokens"}
    wanted |= {"reusable_tokens", "mean_resume_stall_s", "p95_resume_stall_s"}
    wanted |= {"sessions_per_hour", "turns_per_hour", "gpu_paused_token_s", "hidden_reload_s"}
    assert all(wanted <= row.keys() for row in rows)
    assert "break_even" in result.output
    assert {path.name for path in pictures.iterdir()} == {
        *("resume_ttft.png", "goodput.png", "token_seconds.png", "regime_map.png"),
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--policy lru,nonsense", "nonsense"),
        ("--oversubscription 1,x", "--oversubscription"),
        ("--oversubscription 0", "--oversubscription"),
        ("--dram -1", "--dram"),
        ("--load heavy", "stretched or recorded"),
        ("--tier ssd", "NAME:SIZE:GB_PER_S"),
        ("--profile 7b", "--profile"),
    ],
)
def test_a_wrong_option_is_one_line(command: list[str], options: str, problem: str) -> None:
    result = CliRunner().invoke(build_app(), [*command, *options.split()])
    assert isinstance(result.exception, ConfigError)
    assert problem in str(result.exception)
    assert "\n" not in str(result.exception)


def test_every_option_runs(command: list[str]) -> None:
    options = "--policy break_even --oversubscription 2 --dram 1 --seeds 1 --load recorded"
    options += " --cap-wait 10 --wrong-tags 10 --bursty --resume-event 1 --tier ssd:4:1"
    options += " --no-ends"
    for more in ("", " --no-tags", " --adversarial-tags"):
        result = CliRunner().invoke(build_app(), [*command, *(options + more).split()])
        assert result.exit_code == 0, result.output
