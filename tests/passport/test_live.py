"""A passport of a running server: what its routes say, and what it says wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from passport.configs import LLAMA_8B
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.errors import ConfigError
from agentkv.passport import live
from agentkv.passport.live import LiveEngine, ask_server

URL = "http://server:8000"
METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="fp8",\
engine="0",kv_cache_size_tokens="131072",mamba_ssm_cache_dtype="auto",\
num_gpu_blocks="4096",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="fp8",engine="1",num_gpu_blocks="4096"} 1.0
vllm:num_requests_running{engine="0"} 0.0
"""


def client(models: Any, metrics: str = METRICS, status: int = 200) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(status, text=metrics)
        assert request.url.path == "/v1/models"
        if status == 401 and request.headers.get("Authorization") == "Bearer key":
            return httpx.Response(200, json=models)
        return httpx.Response(status, json=models)

    return httpx.Client(transport=httpx.MockTransport(answer))


def served(root: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "root": root, "max_model_len": 16_384}]}


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}/v1"])
def test_a_server_tells_its_model_and_its_cache(url: str) -> None:
    found = ask_server(url, None, client(served("/models/m")))

    assert found == LiveEngine("/models/m", 16_384, 32, 4096, 131_072, "fp8", "auto", 2)


@pytest.mark.parametrize(
    ("models", "metrics", "status", "words"),
    [
        ({}, METRICS, 200, "vLLM server"),
        ({"data": []}, METRICS, 200, "vLLM server"),
        (served("/m"), "", 200, "vLLM server"),
        (served("/m"), 'vllm:cache_config_info{block_size="None"} 1.0\n', 200, "vLLM server"),
        (served("/m"), METRICS, 404, "says 404"),
        (served("/m"), METRICS, 401, "--api-key"),
    ],
)
def test_what_is_no_server_of_vllm_is_refused(
    models: Any, metrics: str, status: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ask_server(URL, None, client(models, metrics, status))


def test_a_server_need_not_tell_the_tokens_of_its_pool() -> None:
    metrics = METRICS.replace('kv_cache_size_tokens="131072",', "")

    assert ask_server(URL, None, client(served("/m"), metrics)).pool_tokens is None


def test_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no answer \(ConnectError\)"):
        ask_server("http://127.0.0.1:9", None)
    with pytest.raises(ConfigError, match="--url"):
        ask_server("nonsense", None)


def test_the_command_takes_all_from_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    target = tmp_path / "out.json"
    asked = httpx.Client
    transport = client(served(str(tmp_path)))._transport
    monkeypatch.setattr(live.httpx, "Client", lambda **_: asked(transport=transport))

    command = ["passport", "--url", URL, "--json", str(target)]
    result = CliRunner().invoke(build_app(), command)
    found = json.loads(target.read_text())

    assert "4,096 blocks in each of 2 engines: 131,072 tokens, 8 GiB" in result.output
    assert found["bytes_per_token"] == 64 * 1024
    assert (found["block_tokens"], found["max_context_tokens"]) == (32, 16_384)
    assert found["engine"]["num_blocks"] == 4096


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", URL, "--kv-dtype", "fp8"], "--kv-dtype fp8: the server"),
        (["--url", URL, "--block-size", "16"], "--block-size 16: the server"),
        ([], "MODEL: give"),
    ],
)
def test_what_the_server_tells_is_not_given_as_well(options: list[str], words: str) -> None:
    result = CliRunner().invoke(build_app(), ["passport", *options])

    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
