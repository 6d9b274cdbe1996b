"""vLLM servers as child processes: start, wait until ready, stop for certain.

One server runs with the plugin, one without; both start at once and share a checkpoint folder.
Why a process group each: vLLM forks an engine process, and a killed parent would leave it behind.
The demo starts them second, after the checkpoint, and stops them whatever happens.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agentkv.demo.client import RequestError
from agentkv.errors import AgentKVError

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 25
LOG_LINE_CHARS = 300


class ServerError(AgentKVError):
    """A vLLM server died or did not become ready; the text carries the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What one vLLM server is started with; `kv_transfer` None means a stock vLLM.

    `environment` is set beside the caller's own; `extra_args` overrule what is set here.
    """

    name: str
    model: Path
    num_gpu_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    seed: int
    kv_transfer: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    is_eager: bool = True
    extra_args: tuple[str, ...] = ()

    def command(self, port: int) -> list[str]:
        """The command line; the module is used because it works for every vLLM distribution."""
        options = {
            "--model": self.model,
            "--served-model-name": "demo",
            "--host": "127.0.0.1",
            "--port": port,
            "--dtype": self.dtype,
            "--block-size": self.block_size,
            "--num-gpu-blocks-override": self.num_gpu_blocks,
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": 2048,
            "--gpu-memory-utilization": 0.3,
            "--seed": self.seed,
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += [str(part) for option in options.items() for part in option]
        command += ["--enforce-eager"] if self.is_eager else []
        command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += ["--disable-uvicorn-access-log", *self.extra_args]
        if self.kv_transfer is not None:
            command += ["--kv-transfer-config", json.dumps(self.kv_transfer)]
        return command


def server_environment() -> dict[str, str]:
    """The caller's environment, with no network look-ups, and CPU builds set up alike.

    A vLLM CPU build keeps one core free for its scheduler, and one more when a KV connector is
    configured; on two cores that leaves none to keep. The two servers would then compute on
    different numbers of cores, so both are told to keep one free.
    """
    for_cpu_builds = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}
    return (
        for_cpu_builds
        | os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )


@dataclass(slots=True)
class Server:
    """A running server; owned by `running`, which stops it."""

    spec: ServerSpec
    port: int
    log_path: Path
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.perf_counter)

    @property
    def url(self) -> str:
        """Base address, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Asks /health once. Raises ServerError when the process is gone."""
        self.check_alive()
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2.0).is_success
        return False

    def check_alive(self) -> None:
        """Raises ServerError, with the end of the log, when the process is gone."""
        code = self.process.poll()
        if code is not None:
            raise ServerError(self._failure(f"stopped with exit code {code}"))

    def terminate(self) -> None:
        """Asks the whole process group to end, without waiting."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ends the whole process group: politely, then for certain. Safe to call twice."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        # The group may outlive its leader, so the second signal is sent whatever the first one did.
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _failure(self, what: str) -> str:
        tail = "\n".join(log_tail(self.log_path))
        return (
            f"the {self.spec.name} server {what} (--keep-logs DIR keeps its whole log); the end of"
            f" {self.log_path.name}:\n{tail}"
        )


def start(spec: ServerSpec, log_path: Path) -> Server:
    """Starts one server on a free port, with its output in `log_path`."""
    port = free_port()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            spec.command(port),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**server_environment(), **spec.environment},
            start_new_session=True,
        )
    server = Server(spec=spec, port=port, log_path=log_path, process=process)
    atexit.register(server.stop)
    return server


@contextmanager
def running(specs: Sequence[ServerSpec], log_folder: Path) -> Iterator[list[Server]]:
    """Starts all servers at once and stops them at the end, after an error or on Ctrl-C."""
    servers: list[Server] = []
    try:
        for spec in specs:
            servers.append(start(spec, log_folder / f"{spec.name}.log"))
        yield servers
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.stop()
            atexit.unregister(server.stop)


def wait_ready(servers: Sequence[Server], *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Blocks until every server answers /health; returns the seconds since the first start.

    Raises ServerError when one dies or when `timeout_s` passes.
    """
    begin = min(server.started_at for server in servers)
    waiting = list(servers)
    while waiting:
        waiting = [server for server in waiting if not server.is_ready()]
        if waiting and time.perf_counter() - begin > timeout_s:
            raise ServerError(waiting[0]._failure(f"was not ready after {timeout_s:.0f} s"))
        if waiting:
            time.sleep(0.25)
    return time.perf_counter() - begin


@contextmanager
def failures_name_the_server(servers: Sequence[Server]) -> Iterator[None]:
    """A failed request becomes a ServerError; with the end of the log when a server has died."""
    try:
        yield
    except (httpx.HTTPError, RequestError) as error:
        for server in servers:
            server.check_alive()
        raise ServerError(f"a request failed: {type(error).__name__}: {error}") from error


def free_port() -> int:
    """A TCP port that is free on the loopback address right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of a log file, long ones cut short; empty when there is none."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line[:LOG_LINE_CHARS] for line in lines[-num_lines:]]
