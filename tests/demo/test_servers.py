"""Starting and stopping processes: what is run, what a death says, that nothing is left."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentkv.demo.servers import Server, ServerError, ServerSpec, free_port, running, wait_ready


def spec(**fields: Any) -> ServerSpec:
    defaults: dict[str, Any] = {
        "name": "stock",
        "model": Path("/model"),
        "num_gpu_blocks": 65,
        "block_size": 32,
        "max_model_len": 1024,
        "max_num_seqs": 2,
        "seed": 3,
    }
    return ServerSpec(**{**defaults, **fields})


def started(tmp_path: Path, program: str) -> Server:
    log = tmp_path / "stock.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=file, stderr=file, start_new_session=True
        )
    return Server(spec=spec(), port=free_port(), log_path=log, process=process)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and ") Z " not in stat.read_text()


def test_the_stock_server_has_prefix_caching_and_no_connector() -> None:
    command = spec().command(8123)
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert "--enable-prefix-caching" in command and "--kv-transfer-config" not in command


def test_both_servers_differ_in_the_connector_alone() -> None:
    stock = spec().command(1)
    plugin = spec(name="plugin", kv_transfer={"kv_connector": "agentkv"}).command(1)
    assert plugin == [*stock, "--kv-transfer-config", '{"kv_connector": "agentkv"}']


def test_a_server_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = started(tmp_path, "print('no such model', flush=True); raise SystemExit(7)")
    with pytest.raises(
        ServerError, match=r"stock server stopped with exit code 7(.|\n)*no such model"
    ):
        wait_ready([server], timeout_s=20)
    server.stop()


def test_a_server_that_never_answers_runs_into_the_time_limit(tmp_path: Path) -> None:
    server = started(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(ServerError, match="not ready after 0 s"):
            wait_ready([server], timeout_s=0.3)
    finally:
        server.stop()


def test_stopping_ends_children_that_ignore_the_first_signal(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"
        "child = os.fork()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN if child == 0 else signal.SIG_DFL)\n"
        "print(os.getpid(), flush=True) if child == 0 else None\n"
        "time.sleep(60)\n"
    )
    server = started(tmp_path, program)
    while not server.log_path.read_text().strip():
        time.sleep(0.02)
    child = int(server.log_path.read_text())
    assert is_alive(child)
    server.stop()
    for _ in range(100):
        if not is_alive(child):
            break
        time.sleep(0.02)
    assert not is_alive(child)
    server.stop()


def test_servers_are_stopped_when_the_body_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(ServerSpec, "command", lambda self, port: sleeper)
    pids: list[int] = []
    with (
        pytest.raises(KeyboardInterrupt),
        running([spec(name="a"), spec(name="b")], tmp_path) as up,
    ):
        pids += [server.process.pid for server in up]
        raise KeyboardInterrupt
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
