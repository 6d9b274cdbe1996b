"""The flags on vLLM's real parser: every way to switch agentkv on, and every clash."""

from argparse import Namespace
from pathlib import Path

import pytest
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentkv.patches.cli_flags import add_flags

SELECT_BY_JSON = (
    "--kv-transfer-config",
    '{"kv_connector": "agentkv", "kv_role": "kv_both"}',
)


def build_parser() -> FlexibleArgumentParser:
    return EngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm"))


def selected(*args: str) -> KVTransferConfig:
    """What vLLM takes from a command line as its KV transfer config."""
    # Any folder that exists: vLLM looks up the name of a model, and nothing here is a name.
    folder = str(Path(__file__).parent)
    namespace: Namespace = build_parser().parse_args(["--model", folder, *args])
    return EngineArgs.from_cli_args(namespace).kv_transfer_config


@pytest.fixture
def settings_file(tmp_path: Path) -> str:
    file = tmp_path / "agentkv.yaml"
    file.write_text("dram:\n  size_bytes: 64MiB\n")
    return str(file)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The last line of what is printed when a command line is refused."""
    with pytest.raises(SystemExit) as stopped:
        build_parser().parse_args(list(args))
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("args", [("--kv-connector", "agentkv"), ("--kv_connector=agentkv",)])
def test_the_flag_selects_agentkv_with_its_defaults(args: tuple[str, ...]) -> None:
    config = selected(*args)
    assert (config.kv_connector, config.kv_role) == ("agentkv", "kv_both")
    assert config.kv_load_failure_policy == "recompute"
    assert config.kv_connector_extra_config == {}


def test_a_settings_file_alone_selects_agentkv(settings_file: str) -> None:
    config = selected("--agentkv-config", settings_file)
    assert config.kv_connector == "agentkv"
    assert config.kv_connector_extra_config == {"dram": {"size_bytes": "64MiB"}}


def test_both_flags_may_be_given_in_either_order(settings_file: str) -> None:
    name, file = ("--kv-connector", "agentkv"), ("--agentkv-config", settings_file)
    for args in ((*name, *file), (*file, *name)):
        config = selected(*args)
        assert config.kv_connector == "agentkv"
        assert config.kv_connector_extra_config == {"dram": {"size_bytes": "64MiB"}}


def test_the_flag_also_selects_vllms_own_connectors() -> None:
    config = selected("--kv-connector", "OffloadingConnector")
    assert (config.kv_connector, config.kv_role) == ("OffloadingConnector", "kv_both")
    assert config.kv_load_failure_policy == "fail"  # vLLM's default, which is not ours to change.


def test_without_the_flags_nothing_is_selected() -> None:
    assert selected() is None
    namespace = build_parser().parse_args([])
    assert not hasattr(namespace, "kv_connector")


def test_vllms_json_and_dotted_flags_work_as_before() -> None:
    assert selected(*SELECT_BY_JSON).kv_connector == "agentkv"
    prefix = "--kv-transfer-config"
    config = selected(
        *(f"{prefix}.kv_connector", "agentkv"),
        *(f"{prefix}.kv_role", "kv_both"),
        *(f"{prefix}.kv_connector_extra_config.dram.size_bytes", "64MiB"),
    )
    assert config.kv_connector_extra_config == {"dram": {"size_bytes": "64MiB"}}


def test_vllms_config_file_may_hold_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("kv-connector: agentkv\n")
    assert selected("--config", str(file)).kv_connector == "agentkv"


def test_the_server_parser_has_the_flags_too() -> None:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    assert parser.parse_args(["--kv-connector", "agentkv"]).kv_transfer_config is not None


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("flag", ["--kv-connector", "--agentkv-config"])
def test_a_flag_and_vllms_json_exclude_each_other(
    is_first: bool, flag: str, settings_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = (flag, "agentkv" if flag == "--kv-connector" else settings_file)
    args = (*ours, *SELECT_BY_JSON) if is_first else (*SELECT_BY_JSON, *ours)
    assert "not allowed with argument" in refused(capsys, *args)


def test_a_settings_file_needs_agentkv(
    settings_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "vllm: error: --agentkv-config needs --kv-connector agentkv, not NixlConnector"
    other, file = ("--kv-connector", "NixlConnector"), ("--agentkv-config", settings_file)
    assert refused(capsys, *other, *file) == line
    assert refused(capsys, *file, *other) == line


def test_a_wrong_settings_file_stops_the_start_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agentkv.yaml"
    file.write_text("hold:\n  lease: 3\n")
    line = refused(capsys, "--agentkv-config", str(file))
    assert line == f"vllm: error: {file}: hold.lease: unknown key; did you mean hold.lease_s?"


def test_an_option_of_the_same_name_is_left_alone() -> None:
    parser = FlexibleArgumentParser()
    theirs = parser.add_argument("--kv-connector")
    add_flags(parser)
    assert parser._option_string_actions["--kv-connector"] is theirs
    assert "--agentkv-config" in parser._option_string_actions


def test_the_flags_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help=agentkv"])
    shown = capsys.readouterr().out
    assert "--kv-connector NAME" in shown
    assert "--agentkv-config FILE" in shown
