"""`agentkv demo`: what is refused before anything starts."""

import importlib.util
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentkv.cli.demo import demo
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


def test_files_that_could_not_be_written_are_refused_at_the_start(
    app: typer.Typer, tmp_path: Path
) -> None:
    no_folder = CliRunner().invoke(app, ["--json", str(tmp_path / "none" / "x.json")]).exception
    assert isinstance(no_folder, ConfigError) and "there is no folder" in str(no_folder)
    no_type = CliRunner().invoke(app, ["--picture", "x.bmpx"]).exception
    assert isinstance(no_type, ConfigError) and ".png" in str(no_type)


def test_a_trace_that_cannot_be_read_is_a_config_error_before_a_server_starts(
    app: typer.Typer, tmp_path: Path
) -> None:
    picture = str(tmp_path / "p.png")
    result = CliRunner().invoke(app, ["--trace", str(tmp_path / "no.jsonl"), "--picture", picture])
    assert isinstance(result.exception, ConfigError)
    assert "no.jsonl" in str(result.exception)
