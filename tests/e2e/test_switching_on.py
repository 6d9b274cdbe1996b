"""Every way to switch agentkv on serves a request through it; a wrong setting stops the start.

`--kv-connector` with `--agentkv-config` is how `test_http` starts its server.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentkv import capacity

from .conftest import StartEngine
from .engine import Ask, prompt_of
from .server import API_SERVER, environment, serving

ASK = Ask("r", prompt_of(1, 100), session="s")
SETTINGS = {"dram": {"size_bytes": "16MiB"}, "min_load_tokens": 1}


def command_line(model: Path, *flags: str) -> KVTransferConfig:
    """What vLLM's parser makes of these flags."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["--model", str(model), *flags]))
    transfer: KVTransferConfig = args.kv_transfer_config
    return transfer


PLAIN = {"kv_connector": "agentkv", "kv_role": "kv_both"}
WAYS: dict[str, Callable[[Path], Any]] = {
    "LLM": lambda model: KVTransferConfig(**PLAIN, kv_connector_extra_config=SETTINGS),
    "LLM, as a mapping": lambda model: {**PLAIN, "kv_connector_extra_config": SETTINGS},
    "LLM, no settings": lambda model: KVTransferConfig(**PLAIN),
    "module path": lambda model: KVTransferConfig(
        kv_connector="AgentKVConnector",
        kv_connector_module_path="agentkv.connectors.connector",
        kv_role="kv_both",
        kv_connector_extra_config=SETTINGS,
    ),
    "--kv-transfer-config": lambda model: command_line(
        model, "--kv-transfer-config", json.dumps(PLAIN)
    ),
    "--kv-connector": lambda model: command_line(model, "--kv-connector", "agentkv"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_is_served_through_agentkv(
    model: Path, start: StartEngine, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With no settings the tier is half of the free memory, which takes a while to fill.
    monkeypatch.setattr(capacity, "free_memory_bytes", lambda **options: 32 << 20)
    engine = start(kv_transfer_config=WAYS[way](model))
    assert engine.dram.cache_capacity * engine.block_bytes == 16 << 20
    answer = engine.ask(ASK)
    assert len(answer.tokens) == 8
    assert engine.stored_blocks == 3
    assert [pause["session_id"] for pause in engine.ledger("pause")] == ["s"]
    assert not engine.dram_file.exists(), "would stay behind if the engine were killed now"


def test_agentkv_serve_answers_and_leaves_nothing_behind(
    model: Path, engine_lock: None, tmp_path: Path
) -> None:
    agentkv = (str(Path(sys.executable).with_name("agentkv")), "serve", str(model))
    options = ("--dram", "16MiB", "--policy", "always_hold")
    with serving((*agentkv, *options), tmp_path / "log") as server:
        assert not server.dram_file().exists(), "would stay behind if the server were killed now"
        body = {"prompt": list(range(4, 104)), "max_tokens": 5, "temperature": 0}
        for _ in range(3):  # vLLM hands the numbers of a step over in the next one.
            assert server.post("/v1/completions", body, **{"X-Session-ID": "s"})["choices"]
        assert server.metric("agentkv:resumes_total", tier="gpu") >= 1
        assert server.metric("agentkv:decisions_total", action="hold") >= 2
        assert server.stop(signal.SIGTERM) == 0
        assert not server.dram_file().exists()


def failed_start(*flags: str) -> tuple[int, str]:
    """Exit status and stderr of a server that must not start."""
    done = subprocess.run(
        [*API_SERVER, *flags],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("transfer", "wanted"),
    [
        (
            {"kv_role": "kv_both", "kv_connector_extra_config": {"dram": {"size": "4GiB"}}},
            "kv_connector_extra_config.dram.size: unknown key; did you mean dram.size_bytes?",
        ),
        ({"kv_role": "kv_producer"}, 'kv_role: agentkv needs "kv_both", is "kv_producer"'),
    ],
)
def test_a_wrong_setting_stops_the_server_with_one_line(
    model: Path, engine_lock: None, transfer: dict[str, Any], wanted: str
) -> None:
    text = json.dumps({"kv_connector": "agentkv", **transfer})
    status, stderr = failed_start("--model", str(model), "--kv-transfer-config", text)
    assert status != 0
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("agentkv.errors.ConfigError: ")
    assert wanted in last


def test_a_wrong_flag_stops_the_server_with_one_line(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "agentkv.yaml"
    config.write_text("polcy: always_hold\n")
    status, stderr = failed_start("--model", str(model), "--agentkv-config", str(config))
    assert status == 2
    assert f"{config}: polcy: unknown key" in stderr.strip().splitlines()[-1]
