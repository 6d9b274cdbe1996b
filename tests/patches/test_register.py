"""Registration: idempotent, inert without agentkv, and silent where vLLM differs."""

from importlib.metadata import entry_points

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs

from agentkv import patches
from agentkv.errors import UnsupportedVllmError
from agentkv.patches import cli_flags, connector_name, engine_config, problems
from agentkv.symbols import Symbol

GONE = (Symbol("vllm.engine.arg_utils:EngineArgs.gone"),)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of problems of a fresh process."""
    fresh: list[str] = []
    monkeypatch.setattr(problems, "_problems", fresh)
    return fresh


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="agentkv")
    assert plugin.load() is patches.register


def test_this_vllm_fits(noted: list[str]) -> None:
    patches.register()
    assert noted == []


def test_registering_again_wraps_nothing_again() -> None:
    before = (EngineArgs.add_cli_args, EngineArgs.create_engine_config)
    patches.register()
    assert (EngineArgs.add_cli_args, EngineArgs.create_engine_config) == before
    assert not hasattr(EngineArgs.create_engine_config.__wrapped__, "_is_agentkv")


def test_the_connector_name_is_known_to_vllm() -> None:
    assert "agentkv" in KVConnectorFactory._registry


def test_a_connector_of_that_name_registered_by_others_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other() -> None: ...

    monkeypatch.setitem(KVConnectorFactory._registry, "agentkv", other)
    assert connector_name.apply() is None
    assert KVConnectorFactory._registry["agentkv"] is other


@pytest.mark.parametrize("patch", [cli_flags, connector_name, engine_config])
def test_a_vllm_that_differs_is_noted_and_not_patched(
    patch: object, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (EngineArgs.add_cli_args, EngineArgs.create_engine_config)
    monkeypatch.setattr(patch, "SYMBOLS", GONE)
    patches.register()
    assert noted == ["vllm.engine.arg_utils:EngineArgs.gone does not exist"]
    assert (EngineArgs.add_cli_args, EngineArgs.create_engine_config) == before


def test_a_patch_that_fails_does_not_stop_vllm(
    noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "PATCHES", ("does_not_exist", "connector_name"))
    patches.register()
    (problem,) = noted
    assert problem.startswith("does_not_exist failed (ModuleNotFoundError: ")


def test_problems_reach_only_the_user_who_selects_agentkv(
    model: str, noted: list[str], small_pool: None
) -> None:
    noted.append("vllm.x:Y does not exist")
    EngineArgs(model=model, skip_tokenizer_init=True).create_engine_config()
    selected = {"kv_connector": "agentkv", "kv_role": "kv_both"}
    with pytest.raises(UnsupportedVllmError, match=r"does not fit this vLLM: vllm\.x:Y does not"):
        EngineArgs(model=model, kv_transfer_config=selected).create_engine_config()
