"""`agentkv passport` from its arguments to its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from passport.configs import GEMMA3, KIMI_LINEAR, LLAMA_70B
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.errors import ConfigError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["passport", *arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def write(folder: Path, data: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_and_its_folder_say_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA_70B)
    by_file, by_folder = run(str(file)), run(str(tmp_path))

    assert "327,680 (320 KiB)" in by_file
    # Below the title, which names the path, however long.
    of_file, of_folder = (text.partition("State of")[2] for text in (by_file, by_folder))
    assert of_file == of_folder != ""


def test_everything_is_in_the_json(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    run(
        str(write(tmp_path, KIMI_LINEAR)),
        *("--accelerator", "h100", "--tp", "4", "--json", str(target)),
    )
    found = json.loads(target.read_text())

    assert found["bytes_per_token"] == 8064
    assert found["fixed_bytes"] == 43_417_600
    assert [group["num_layers"] for group in found["groups"]] == [20, 7]
    assert [group["grows"] for group in found["groups"]] == [False, True]
    assert found["device_groups"][0]["fixed_bytes"] == 43_417_600 / 4
    assert found["roofline"]["num_devices"] == 4
    assert found["parameters"]["total"] == 49_122_681_728


def test_windows_are_shown(tmp_path: Path) -> None:
    text = run(str(write(tmp_path, GEMMA3)), "--context", "1024,8192")

    assert "sliding window" in text
    assert "to 512" in text
    assert "beyond windows    4,096" in text


def test_a_name_is_looked_up_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--some--model"
    old, new = model / "snapshots" / "aaaa", model / "snapshots" / "bbbb"
    os.utime(write(old, GEMMA3), (1, 1))
    write(new, LLAMA_70B)

    assert "llama, bfloat16" in run("some/model")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("aaaa\n")
    assert "gemma3_text, bfloat16" in run("some/model")


def test_what_is_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"hf download no/model config\.json"):
        run("no/model")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        run(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="JSON"):
        run(str(path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--accelerator", "h1000"], "nearest: h100"),
        (["--context", "8k"], "as 8192,131072"),
        (["--context", "0"], "as 8192,131072"),
        (["--json", "/proc/none/x.json"], "cannot be written"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(str(write(tmp_path, LLAMA_70B)), *options)
