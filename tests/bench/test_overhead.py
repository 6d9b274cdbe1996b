"""What agentkv costs: the sums, and the whole command with servers that have no model."""

import json
import sys
from pathlib import Path

import pytest
from demo.builders import replay, result
from typer.testing import CliRunner

from agentkv.bench import overhead_run
from agentkv.bench.overhead_run import Sample, ratios, sample_of
from agentkv.cli.main import build_app
from agentkv.demo.servers import ServerSpec

SERVER = Path(__file__).parent / "replay_server.py"


def test_a_run_is_its_answer_tokens_over_its_time() -> None:
    turns = {(name, 0): result(gaps_s=(0.1, 0.1, 0.3)) for name in "ab"}
    found = sample_of("stock", 3, replay(turns), answer_tokens=4)
    assert found.tokens_per_s == pytest.approx(2 * 4 / 10.0)
    assert found.itl_p50_s == pytest.approx(0.1)
    assert 0.2 < found.itl_p99_s <= 0.3


def test_ratios_are_of_the_same_run() -> None:
    samples = [Sample("stock", run, 10.0**run, 1.0, 1.0) for run in range(3)]
    samples += [Sample("agentkv", run, 0.9 * 10.0**run, 1.1, 1.0) for run in (2, 0, 1)]
    found = ratios(samples, "agentkv", "stock")
    assert found["tokens_per_s"] is not None and found["itl_p50_s"] is not None
    assert found["tokens_per_s"].median == pytest.approx(0.9)
    assert found["itl_p50_s"].median == pytest.approx(1.1)


def test_the_command_measures_all_three_in_every_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    specs: dict[str, ServerSpec] = {}

    def command(spec: ServerSpec, port: int) -> list[str]:
        specs[spec.name] = spec
        return [sys.executable, "-S", str(SERVER), str(port)]

    monkeypatch.setattr(ServerSpec, "command", command)
    monkeypatch.setattr(overhead_run, "REST_S", 0.0)
    file = tmp_path / "o.json"
    args = ["bench", "overhead", "--model", "tiny", "--runs", "2", "--prompts", "4"]
    done = CliRunner().invoke(build_app(), [*args, "--json", str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(file.read_text())
    measured = sorted((sample["system"], sample["run"]) for sample in found["samples"])
    assert measured == [(name, run) for name in ("agentkv", "native", "stock") for run in (0, 1)]
    assert found["ratios"]["agentkv/stock"]["tokens_per_s"]["median"] > 0
    assert "agentkv over native, throughput:" in done.output
    assert len({(s.num_gpu_blocks, s.max_num_seqs) for s in specs.values()}) == 1
    # All prompts of a run fit the pool with room to spare: nothing is short of memory.
    assert specs["stock"].num_gpu_blocks > 8 * (512 + 64) // 32
