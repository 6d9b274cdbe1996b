"""A real vLLM server in processes of its own, as users run it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from kit.ports import free_port
from prometheus_client.parser import text_string_to_metric_families

READY_TIMEOUT_S = 300.0  # 20 s on an idle machine
STOP_TIMEOUT_S = 120.0
API_SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
ENGINE_OPTIONS: Mapping[str, Any] = {
    "--block-size": 32,
    "--dtype": "float32",
    "--host": "127.0.0.1",
    "--max-model-len": 1024,
    "--max-num-seqs": 8,
    "--num-gpu-blocks-override": 65,
    "--served-model-name": "tiny",
}


@dataclass(slots=True)
class Server:
    """A running server. `log` is a file with all it wrote."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    log: Path

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        """Sends JSON, wants JSON. Raises httpx.HTTPStatusError for other answers than success."""
        response = self.client.post(path, json={"model": "tiny", **body}, headers=headers)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a sample over all labels not given."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def dram_file(self) -> Path:
        """Where vLLM keeps the DRAM tier, from its log."""
        found = re.search(r"Created mmap file (\S+)", self.log.read_text())
        assert found is not None, "no DRAM tier was made"
        return Path(found[1])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal to the server alone, as an operator would; returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)


# As it was before an engine ran in this process: vLLM leaves variables of its own behind.
_ENVIRONMENT = dict(os.environ)


def environment() -> dict[str, str]:
    """This test's environment, with the engine in processes of its own as is the default."""
    return _ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[Server]:
    """Starts a server and waits until it answers; `command` without the engine's options."""
    port = free_port()
    options = [str(part) for option in ENGINE_OPTIONS.items() for part in option]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options, "--enforce-eager", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            server = Server(process, client, log)
            _wait_ready(server)
            yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_ready(server: Server) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s and server.process.poll() is None:
        with suppress(httpx.HTTPError):
            if server.client.get("/health").is_success:
                return
        time.sleep(0.2)
    raise AssertionError(f"the server did not start:\n{server.log.read_text()[-4000:]}")
