"""`agentkv serve`: the command line that vLLM gets, and what is refused before vLLM loads."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli.main import main
from agentkv.cli.serve import Launch, plan, user_settings, with_plugin
from agentkv.errors import ConfigError


def planned(*vllm_args: str, model: str = "MODEL", **settings: Any) -> Launch:
    return plan(model, vllm_args, settings, environ={}, has_vllm_command=False)


def transfer_config(argv: tuple[str, ...]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    return config


def test_vllm_gets_the_connector_and_the_users_settings_as_they_were_written() -> None:
    argv = planned(dram={"size_bytes": "2GiB"}).argv
    assert transfer_config(argv) == {
        "kv_connector": "agentkv",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"dram": {"size_bytes": "2GiB"}},
    }


def test_all_other_options_are_passed_on_in_order() -> None:
    argv = planned("-tp", "2", "--port", "8001", "--config", "vllm.yaml").argv
    assert argv[-6:] == ("-tp", "2", "--port", "8001", "--config", "vllm.yaml")


def test_without_vllms_command_the_server_module_is_started() -> None:
    assert planned().argv[:5] == (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "MODEL"),
    )


def test_with_vllms_command_its_serve_is_started() -> None:
    launch = plan("MODEL", (), {}, environ={}, has_vllm_command=True)
    assert launch.argv[:5] == (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "MODEL")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"VLLM_PLUGINS": "mine"}, {"VLLM_PLUGINS": "mine,agentkv"}),
        ({"VLLM_PLUGINS": "agentkv,mine"}, {"VLLM_PLUGINS": "agentkv,mine"}),
        ({"VLLM_PLUGINS": ""}, {"VLLM_PLUGINS": "agentkv"}),
    ],
)
def test_other_plugins_stay_as_they_were(
    before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    assert with_plugin({"HOME": "/h", **before}) == {"HOME": "/h", **after}


@pytest.mark.parametrize(
    "args",
    [
        ("--kv-transfer-config", "{}"),
        ("--kv_transfer_config={}",),
        ("--kv-transfer-config.kv_connector", "x"),
        ("--port", "1", "--kv-connector", "agentkv"),
        ("--kv-offloading-size", "4"),
    ],
)
def test_options_that_choose_a_connector_are_refused(args: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="agentkv serve chooses the connector itself; remove it"):
        planned(*args)


@pytest.mark.parametrize("spelling", [("--config", "{}"), ("--config={}",)])
def test_a_connector_chosen_in_vllms_config_file_is_refused(
    tmp_path: Path, spelling: tuple[str, ...]
) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("port: 8001\nkv_transfer_config: {kv_connector: x}\n")
    with pytest.raises(ConfigError) as caught:
        planned(*(part.format(file) for part in spelling))
    assert str(caught.value) == (
        f"{file}: kv_transfer_config: agentkv serve chooses the connector itself; remove it"
    )


def test_the_model_comes_first() -> None:
    with pytest.raises(ConfigError, match="the model comes first, before options such as --port"):
        planned("8001", "MODEL", model="--port")


def test_options_are_put_over_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "agentkv.yaml"
    file.write_text("dram: {auto_fraction: 0.2}\npolicy: always_hold\ncopy_threads: 1\n")
    assert user_settings(config_file=str(file), dram="1GiB", policy="always_swap") == {
        "dram": {"size_bytes": "1GiB"},
        "policy": "always_swap",
        "copy_threads": 1,
    }
    assert user_settings(config_file=None, dram=None, policy=None) == {}


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Run the command to its end and return the exit status."""
    monkeypatch.setattr(sys, "argv", ["agentkv", *args])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            ("--dram", "lots"),
            'dram.size_bytes: "lots" is not a size; write "auto", a size such as "32GiB", '
            "or a whole number of bytes",
        ),
        (("--policy", "hold"), 'policy: unknown value "hold"; did you mean always_hold?'),
        (("--agentkv-config", "none.yaml"), "none.yaml: cannot be read: No such file or directory"),
        (
            ("--kv-offloading-size", "4"),
            "--kv-offloading-size: agentkv serve chooses the connector itself; remove it",
        ),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    line: str,
) -> None:
    assert run(monkeypatch, "serve", "MODEL", *args) == 2
    assert capsys.readouterr().err == f"agentkv: {line}\n"


def test_more_dram_than_there_is_stops_before_vllm_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "serve", "MODEL", "--dram", "900TiB") == 2
    assert "dram.size_bytes: 900TiB is more than the " in capsys.readouterr().err


def test_serve_becomes_vllm_with_the_environment_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []

    def execve(*args: Any) -> None:
        started.extend(args)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert run(monkeypatch, "serve", "MODEL", "--port", "8001", "--dram", "2MiB", "-tp", "2") == 0
    program, argv, environ = started
    assert program == sys.executable
    assert argv[-4:] == ("--port", "8001", "-tp", "2")
    assert transfer_config(argv)["kv_connector_extra_config"] == {"dram": {"size_bytes": "2MiB"}}
    assert environ["VLLM_PLUGINS"] == "mine,agentkv"
