"""The plugin in the life of a server and of an offline engine."""

import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

from agentkv.connectors.endpoint import Plugin
from agentkv.connectors.endpoint.engine_link import Engines
from agentkv.connectors.endpoint.plugin import _engines_of

from .builders import FakeEngine
from .conftest import Serve


def test_vllm_finds_the_plugin_and_it_is_one() -> None:
    (found,) = entry_points(group="vllm.endpoint_plugins", name="agentkv")
    assert found.load() is Plugin
    assert isinstance(Plugin(), EndpointPlugin)


@pytest.mark.parametrize(
    "code",
    [
        "import agentkv.connectors.connector, agentkv.patches; agentkv.patches.register()",
        "from agentkv.connectors.endpoint import mailbox",
    ],
)
def test_an_offline_engine_loads_neither_routes_nor_middleware(code: str) -> None:
    check = (
        f"{code}\nimport sys\n"
        "names = [n for n in sys.modules if n.startswith('agentkv.connectors.endpoint.')]\n"
        "assert set(names) <= {'agentkv.connectors.endpoint.mailbox'}, names\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_our_middleware_sits_inside_vllms_check_of_the_key(serve: Serve) -> None:
    served = await serve(FakeEngine(), "--api-key", "k")
    names = [each.cls.__name__ for each in served.app.user_middleware]  # type: ignore[attr-defined]
    assert names.index("AuthenticationMiddleware") < names.index("AgentKVMiddleware")
    assert (await served.chat()).status_code == 401
    assert served.model.seen == [] and served.engine.sent == []


async def test_a_server_without_an_engine_keeps_its_routes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    served = await serve(FakeEngine(connector=None))
    await served.plugin.init_state(None, served.app.state, served.app.state.args)
    response = await served.get("state")
    assert response.status_code == 503
    assert "not the KV connector" in response.json()["error"]["message"]


@pytest.mark.parametrize("prefix", ["", "/proxy"])
async def test_a_root_path_changes_nothing(serve: Serve, prefix: str) -> None:
    served = await serve(FakeEngine(), "--root-path", "/proxy")
    response = await served.client.post(
        f"{prefix}/v1/chat/completions",
        json={"messages": []},
        headers={"x-claude-code-session-id": "c"},
    )
    assert response.status_code == 200
    assert served.model.seen[0][0]["x-session-id"] == "c"


def parallel(**changes: Any) -> SimpleNamespace:
    fields = {
        "local_engines_only": False,
        "data_parallel_size": 4,
        "data_parallel_size_local": 2,
        "data_parallel_index": 0,
    }
    return SimpleNamespace(**{**fields, **changes})


def test_the_engines_are_counted_as_vllms_client_counts_them() -> None:
    assert _engines_of(parallel()) == Engines(4, 0)
    hybrid = _engines_of(parallel(local_engines_only=True, data_parallel_index=2))
    assert hybrid == Engines(2, 2)
    assert [hybrid.has(index) for index in range(5)] == [False, False, True, True, False]
