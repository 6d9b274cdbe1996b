"""`agentkv demo`: what is refused before anything starts."""

import importlib.util
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from demo.builders import pause_record, resume_record, write_ledger
from rich.console import Console
from typer.testing import CliRunner

from agentkv.cli.demo import _dram_bytes, _tell_of_explain, demo
from agentkv.cli.explain import explain
from agentkv.demo.ledger_file import LedgerFile
from agentkv.errors import ConfigError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(demo)
    return app


def test_a_missing_package_is_named_with_the_way_to_install_it(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    error = CliRunner().invoke(app, []).exception
    assert isinstance(error, ConfigError)
    assert "needs matplotlib" in str(error) and 'pip install "vllm-agentkv[demo]"' in str(error)


def test_dram_is_what_was_asked_for_and_a_wrong_size_is_named(app: typer.Typer) -> None:
    assert _dram_bytes("64MiB", num_tiers=1) == _dram_bytes("64MiB", num_tiers=3) == 64 << 20
    assert _dram_bytes(None, num_tiers=3) < _dram_bytes(None, num_tiers=1)
    error = CliRunner().invoke(app, ["--dram", "much"]).exception
    assert isinstance(error, ConfigError) and str(error).startswith('--dram: "much" is not a size')


def test_files_that_could_not_be_written_are_refused_at_the_start(
    app: typer.Typer, tmp_path: Path
) -> None:
    no_folder = CliRunner().invoke(app, ["--json", str(tmp_path / "none" / "x.json")]).exception
    assert isinstance(no_folder, ConfigError) and "there is no folder" in str(no_folder)
    no_place = CliRunner().invoke(app, ["--ledger", str(tmp_path / "none" / "x.jsonl")]).exception
    assert isinstance(no_place, ConfigError) and "--ledger" in str(no_place)
    no_type = CliRunner().invoke(app, ["--picture", "x.bmpx"]).exception
    assert isinstance(no_type, ConfigError) and ".png" in str(no_type)


def test_a_trace_that_cannot_be_read_is_a_config_error_before_a_server_starts(
    app: typer.Typer, tmp_path: Path
) -> None:
    picture = str(tmp_path / "p.png")
    result = CliRunner().invoke(app, ["--trace", str(tmp_path / "no.jsonl"), "--picture", picture])
    assert isinstance(result.exception, ConfigError)
    assert "no.jsonl" in str(result.exception)


def test_the_last_lines_say_how_to_explain_the_dearest_mistake(tmp_path: Path) -> None:
    lines = [pause_record(), resume_record(regret_s=0.5)]
    for pause_id, regret_s in ((2, 1.5), (3, None)):
        ids = {"pause_id": pause_id, "session_id": f"s {pause_id}"}
        lines += [pause_record(**ids), resume_record(**ids, regret_s=regret_s)]
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, [*lines, pause_record(pause_id=4, session_id="open")])
    console = Console(file=io.StringIO(), width=40)
    result: Any = SimpleNamespace(pauses=LedgerFile(path).pauses())
    _tell_of_explain(result, console, Path("my ledger.jsonl"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.splitlines()[-1] == "  agentkv explain 's 2' --ledger 'my ledger.jsonl'"
    assert CliRunner().invoke(explain_app(), ["s 2", "--ledger", str(path)]).exit_code == 0


def explain_app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(explain)
    return app


def test_a_demo_without_pauses_says_nothing_of_explain() -> None:
    console = Console(file=io.StringIO())
    _tell_of_explain(SimpleNamespace(pauses={}), console, Path("x"))  # type: ignore[arg-type]
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
