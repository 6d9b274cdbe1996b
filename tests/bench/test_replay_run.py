"""The whole command with servers that have no model: what is played, written and refused."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from agentkv.bench import replay_calibrate, replay_run
from agentkv.bench.replay_settings import parse_systems
from agentkv.bench.replay_stats import METRICS
from agentkv.cli.main import build_app
from agentkv.demo.agents import ClientKind
from agentkv.demo.servers import ServerSpec, free_port

SERVER = Path(__file__).parent / "replay_server.py"
SMALL = ("--agents", "3", "--sessions", "3", "--seeds", "1", "--max-wait", "0.01")
SMALL += ("--max-context", "2000", "--no-calibrate", "--ramp", "0")
COUNTED = ("local_hit_tokens", "external_hit_tokens", "resume_dram_tokens", "prefetch_late")
PLACE = ("system", "policy", "oversubscription", "dram", "x", "seed", "token_mismatches")


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (replay_run, replay_calibrate):
        monkeypatch.setattr(module, "REST_S", 0.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Starts servers without a model in place of vLLM's; keeps their names."""
    names: list[str] = []

    def command(spec: ServerSpec, port: int) -> list[str]:
        names.append(spec.name)
        kind = "wrong" if spec.name.startswith("native") else "right"
        return [sys.executable, "-S", str(SERVER), str(port), kind]

    monkeypatch.setattr(ServerSpec, "command", command)
    return names


@pytest.fixture
def running_url() -> Iterator[str]:
    """A server that runs already."""
    port = free_port()
    with subprocess.Popen([sys.executable, "-S", str(SERVER), str(port)]) as process:
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline_s:
            with suppress(httpx.HTTPError):
                httpx.get(url, timeout=30)
                break
            time.sleep(0.05)
        else:
            pytest.fail("the server did not start")
        yield url
        process.kill()


def call(*args: str) -> Any:
    return CliRunner().invoke(build_app(), ["bench", "replay", *args])


def test_every_system_plays_every_seed_at_every_regime(started: list[str], tmp_path: Path) -> None:
    file, plots, html = tmp_path / "r.json", tmp_path / "plots", tmp_path / "r.html"
    outputs = ("--json", str(file), "--plots", str(plots), "--html", str(html))
    outputs += ("--keep-logs", str(tmp_path / "logs"))
    regimes = ("--oversubscription", "1", "--dram", "0,1", "--seeds", "2")
    done = call(*SMALL, *regimes, "--systems", "stock,agentkv:lru", *outputs)
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(file.read_text())
    places = [(r["system"], r["seed"], r["dram"]) for r in found["rows"]]
    assert sorted(places) == sorted(
        (system, seed, dram)
        for system in ("stock", "agentkv:lru")
        for seed in (0, 1)
        for dram in (0.0, 1.0)
    )
    assert {*METRICS, *COUNTED, *PLACE} <= set(found["rows"][0])
    turns = (tmp_path / "logs" / "agentkv_lru_1_1_0.turns.jsonl").read_text().splitlines()
    assert len(turns) == found["rows"][0]["resumes"] + 3
    assert len(found["summary"]) == 4 and len(found["ratios"]) == 2
    # Stock is the same with any DRAM: it was played once for each seed.
    assert sum(name.startswith("stock") for name in started) == 2
    assert {r["played_at"] for r in found["rows"] if r["system"] == "stock"} == {"1/1"}
    assert found["provenance"]["machine"]["num_cores"] and found["provenance"]["regimes"]
    assert [p.name for p in sorted(plots.iterdir())] == ["over_x.png", "resume_ttft_cdf.png"]
    page = html.read_text()
    assert page.count("data:image/png;base64,") == 2 and "http" not in page.split("<h1>")[0]
    assert "| 1, 1 (0.50) | agentkv:lru |" in done.output
    assert "Waits are not scaled, but cut at 0.01 s" in done.output
    again = call("--from", str(file), "--html", str(tmp_path / "again.html"))
    assert again.exit_code == 0, (again.output, again.exception)
    assert again.output.split("Wrote")[0].strip() == done.output.split("Wrote")[0].strip()
    assert (tmp_path / "again.html").read_text() == page


def test_systems_play_in_an_order_that_follows_seed_and_regime() -> None:
    systems = parse_systems("stock,native,agentkv,infinite", (), ClientKind.TAGS)
    orders = {
        (seed, label): tuple(system.name for system in replay_run.in_turn(systems, seed, label))
        for seed in range(6)
        for label in ("2/1", "4/1")
    }
    assert all(sorted(order) == sorted(orders[0, "2/1"]) for order in orders.values())
    assert len(set(orders.values())) > 6
    # Nobody is always the first.
    assert len({order[0] for order in orders.values()}) == 4
    again = replay_run.in_turn(systems, 0, "2/1")
    assert tuple(system.name for system in again) == orders[0, "2/1"]


def test_one_by_one_no_server_runs_beside_another(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    running = replay_run.running

    def noted(specs: list[ServerSpec], folder: Path) -> Any:
        at_once.append(len(specs))
        return running(specs, folder)

    monkeypatch.setattr(replay_run, "running", noted)
    sizes = ("--oversubscription", "1")
    done = call(*SMALL, *sizes, "--systems", "stock,agentkv", "--one-by-one")
    assert done.exit_code == 0, (done.output, done.exception)
    assert at_once == [1, 1] and len(started) == 2


def test_wrong_tokens_are_counted_and_end_with_status_1(started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    args = ("--systems", "native,infinite", "--oversubscription", "1", "--calibrate")
    args += ("--json", str(file))
    done = call(*SMALL, *args)
    assert done.exit_code == 1
    native, infinite = json.loads(file.read_text())["rows"]
    assert native["system"] == "native" and native["token_mismatches"] > 5
    assert (infinite["token_mismatches"], infinite["compared_with"]) == (0, "infinite")


def test_servers_that_run_already(running_url: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    urls = ("--url", f"a={running_url}", "--url", f"b={running_url}/v1#fake-model")
    done = call(*SMALL, "--seeds", "2", "--systems", "", *urls, "--json", str(file))
    assert done.exit_code == 0, (done.output, done.exception)
    rows = json.loads(file.read_text())["rows"]
    assert [(row["system"], row["seed"]) for row in rows] == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
    ]
    for row in rows:
        assert row["x"] is None and row["prefetch_late"] is None
        assert row["local_hit_tokens"] > 0
        # The second server has seen the sessions of the first, but none begins as they did.
        assert row["recomputed_share"] < 0.05
        first_turns = row["computed_tokens"] / (row["computed_tokens"] + row["local_hit_tokens"])
        assert first_turns > 0.15


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = call(*SMALL, "--systems", "", "--url", f"a=http://127.0.0.1:{free_port()}")
    assert done.exit_code == 3
    assert "agentkv: a request failed: ConnectError" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--model", "huge"), "--model huge: neither"),
        (("--client", "pigeon"), "--client pigeon: unknown"),
        (("--json", "/no/such/folder/r.json"), "there is no folder"),
        (("--trace", "/no/such/trace.jsonl"), "/no/such/trace.jsonl: cannot be read"),
        (("--oversubscription", "64"), "give --agents"),
        (("--from", "/no/such/r.json"), "--from /no/such/r.json: not a file of --json"),
        (("--from", str(SERVER)), "replay_server.py: not a file of --json"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_server_starts(
    args: tuple[str, ...], said: str, started: list[str]
) -> None:
    done = call(*SMALL, *args)
    assert said in str(done.exception)
    assert started == []
