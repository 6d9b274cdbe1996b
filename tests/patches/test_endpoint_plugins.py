"""Our endpoint plugin loads for who selects agentkv; what else is opt-in stays off."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
import vllm.envs
import vllm.plugins
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

from agentkv.patches import endpoint_plugins
from agentkv.patches.endpoint_plugins import let_through

GROUP = "vllm.endpoint_plugins"


@pytest.fixture(autouse=True)
def unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own loader, no VLLM_PLUGINS, and no cache that an engine of this process left on."""
    vllm.envs.disable_envs_cache()
    loader = vllm.plugins.load_endpoint_plugins
    monkeypatch.setattr(
        vllm.plugins, "load_endpoint_plugins", getattr(loader, "__wrapped__", loader)
    )
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another endpoint plugin, and plugins of other kinds of which one has the same name."""
    found = [
        EntryPoint("agentkv", "agentkv.connectors.endpoint:Plugin", GROUP),
        EntryPoint("other", "agentkv.connectors.endpoint:Plugin", GROUP),
        EntryPoint("other", "builtins:dict", "vllm.general_plugins"),
        EntryPoint("mine", "builtins:list", "vllm.general_plugins"),
    ]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda **wanted: EntryPoints(found).select(**wanted)
    )


def loaded() -> list[str]:
    return [type(plugin).__name__ for plugin in vllm.plugins.load_endpoint_plugins(("generate",))]


def test_only_ours_is_loaded_and_only_after_agentkv_was_selected(installed: None) -> None:
    assert loaded() == []
    let_through()
    assert loaded() == ["Plugin"]


def test_other_kinds_of_plugins_load_as_before(installed: None) -> None:
    let_through()
    loaded()
    assert set(vllm.plugins.load_plugins_by_group("vllm.general_plugins")) == {"other", "mine"}


def test_nothing_is_left_behind_in_the_settings_of_vllm(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_through()
    loaded()
    assert vllm.envs.VLLM_PLUGINS is None
    assert "VLLM_PLUGINS" not in os.environ

    def fail(group: str) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(vllm.plugins, "load_plugins_by_group", fail)
    with pytest.raises(RuntimeError):
        loaded()
    assert vllm.envs.VLLM_PLUGINS is None


@pytest.mark.parametrize(("allowed", "names"), [("", []), ("mine", []), ("agentkv", ["Plugin"])])
def test_a_list_of_the_users_own_stands(
    installed: None, monkeypatch: pytest.MonkeyPatch, allowed: str, names: list[str]
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    let_through()
    assert loaded() == names


def test_it_works_where_vllm_caches_its_settings(installed: None) -> None:
    vllm.envs.enable_envs_cache()
    try:
        let_through()
        assert loaded() == ["Plugin"]
    finally:
        vllm.envs.disable_envs_cache()


def test_wrapping_twice_wraps_once() -> None:
    original = vllm.plugins.load_endpoint_plugins
    let_through()
    wrapped = vllm.plugins.load_endpoint_plugins
    let_through()
    assert vllm.plugins.load_endpoint_plugins is wrapped
    assert wrapped.__wrapped__ is original


def test_a_server_that_selects_agentkv_loads_it_and_another_does_not(
    model: str, small_pool: None, installed: None
) -> None:
    EngineArgs(model=model, skip_tokenizer_init=True).create_engine_config()
    assert loaded() == []
    transfer = KVTransferConfig(
        kv_connector="agentkv",
        kv_role="kv_both",
        kv_connector_extra_config={"dram": {"size_bytes": "64MiB"}},
    )
    EngineArgs(
        model=model, skip_tokenizer_init=True, kv_transfer_config=transfer
    ).create_engine_config()
    assert loaded() == ["Plugin"]


def test_a_process_started_later_sees_nothing_of_it(installed: None) -> None:
    let_through()
    loaded()
    code = "import os, vllm.envs; assert vllm.envs.VLLM_PLUGINS is None, vllm.envs.VLLM_PLUGINS"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_vllm_that_differs_is_refused_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentkv.patches import engine_config

    assert set(endpoint_plugins.SYMBOLS) <= set(engine_config.SYMBOLS)
