"""Checks of a machine: each thing that can be wrong is said, and nothing where it is not."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentkv.config import DramConfig, parse_config
from agentkv.doctor import check_disk, check_memory
from agentkv.doctor.check_disk import Speed, disk_checks, measure
from agentkv.doctor.check_memory import locked_check, memory_checks
from agentkv.doctor.check_servers import hash_check, server_checks
from agentkv.doctor.checks import Check
from agentkv.doctor.install import install_checks
from agentkv.doctor.probe_vllm import Probed, plugins_check, run_probe, vllm_checks
from agentkv.errors import ConfigError

FITTING = {"vllm": "0.32.0", "torch": "2.11.0+cpu", "device": "cpu", "probe": "", "patches": ""}
NO_VISION = {"torchvision_error": "ModuleNotFoundError: No module named 'torchvision'"}


def states(checks: Iterator[Check] | list[Check]) -> dict[str, str]:
    return {check.name: check.state.value for check in checks}


def vllm_states(**found: str) -> dict[str, str]:
    return states(vllm_checks(lambda: Probed({**FITTING, **NO_VISION, **found})))


def test_an_installation_that_fits_is_all_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert set(vllm_states().values()) == {"ok"}


def test_this_environment_is_asked_in_a_process_of_its_own() -> None:
    probed = run_probe()
    assert probed.found["device"] == "cpu" and "torch" in probed.found
    assert {"vllm", "probe", "patches"} <= probed.found.keys()
    assert not any(probed.error(name) for name in ("vllm", "torch", "probe", "patches"))


def test_another_version_a_lost_name_and_a_failed_patch_are_said() -> None:
    assert vllm_states(vllm="0.33.0")["vllm"] == "fail"
    assert vllm_states(probe_error="X no longer takes y")["vllm's parts"] == "fail"
    assert vllm_states(patches_error="x")["vllm's parts"] == "fail"
    none = states(vllm_checks(lambda: Probed({"vllm_error": "ImportError: x"})))
    assert none["vllm"] == "fail" and none["torch"] == "fail" and "vllm's parts" not in none


def test_a_torchvision_of_another_build_is_said() -> None:
    assert vllm_states(torchvision="0.26.0+cpu")["torch"] == "ok"
    assert vllm_states(torchvision="0.26.0+cu128")["torch"] == "warn"
    broken = "RuntimeError: operator torchvision::nms does not exist"
    assert vllm_states(torchvision_error=broken)["torch"] == "fail"


@pytest.mark.parametrize(
    ("allowed", "state"), [(None, "ok"), ("a, agentkv", "ok"), ("lora", "fail"), ("", "fail")]
)
def test_a_list_of_plugins_without_us_is_said(allowed: str | None, state: str) -> None:
    assert plugins_check(allowed).state.value == state


def test_a_dram_tier_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_memory, "free_memory_bytes", lambda root: 8 << 30)
    assert states(memory_checks(DramConfig(size_bytes=16 << 30)))["memory"] == "fail"
    assert states(memory_checks(DramConfig(size_bytes=4 << 30)))["memory"] == "ok"
    assert states(memory_checks(DramConfig()))["memory"] == "ok"
    monkeypatch.setattr(check_memory, "free_memory_bytes", lambda root: 1 << 29)
    assert states(memory_checks(DramConfig()))["memory"] == "warn"


def test_a_machine_without_dev_shm_is_said(tmp_path: Path) -> None:
    assert states(memory_checks(DramConfig(size_bytes=1 << 20), tmp_path))["/dev/shm"] == "fail"
    (tmp_path / "dev/shm").mkdir(parents=True)
    huge = DramConfig(size_bytes=1 << 60)
    assert states(memory_checks(huge, tmp_path))["/dev/shm"] == "fail"


@pytest.mark.parametrize(
    ("limit", "has_gpu", "state"),
    [(8 << 20, True, "warn"), (8 << 20, False, "ok"), (resource.RLIM_INFINITY, True, "ok")],
)
def test_too_little_locked_memory_matters_to_gpus(limit: int, has_gpu: bool, state: str) -> None:
    assert locked_check(limit, 1 << 30, has_gpu=has_gpu).state.value == state


def ssd(path: Path, **more: object) -> list[Check]:
    return disk_checks(parse_config({"ssd": {"path": str(path), **more}}).ssd)


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    speed = measure(tmp_path, num_bytes=8 << 20)
    assert speed.write > 0 and speed.read > 0 and not list(tmp_path.iterdir())
    checks = ssd(tmp_path / "not" / "yet", size_bytes="1MiB")
    assert "GB/s" in checks[1].said and not list(tmp_path.iterdir())


def test_a_slow_full_or_wrong_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_disk, "measure", lambda folder: Speed(2e9, 0.2e9, True))
    assert states(ssd(tmp_path, size_bytes=1 << 60)) == {"ssd.path": "warn", "ssd speed": "warn"}
    monkeypatch.setattr(check_disk, "_file_system", lambda folder: "ext4")
    monkeypatch.setattr(check_disk, "measure", lambda folder: Speed(2e9, 2e9, True))
    small = {"size_bytes": "1MiB", "min_free_bytes": "1MiB"}
    assert states(ssd(tmp_path, **small)) == {"ssd.path": "ok", "ssd speed": "ok"}
    kept_free = ssd(tmp_path, size_bytes="1MiB", min_free_bytes=1 << 60)[0]
    assert kept_free.state.value == "warn" and "min_free_bytes" in str(kept_free.mend)
    monkeypatch.setattr(check_disk, "_file_system", lambda folder: "tmpfs")
    assert states(ssd(tmp_path, **small))["ssd.path"] == "warn"

    def refuse(folder: Path) -> Speed:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(check_disk, "measure", refuse)
    [check] = ssd(tmp_path)
    assert check.state.value == "fail" and "Permission denied" in check.said


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that refuses connections: it is taken, and nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def test_servers_that_are_not_there_are_said(closed_port: int) -> None:
    config = parse_config(
        {
            "redis": {"url": f"redis://127.0.0.1:{closed_port}/0"},
            "lmcache": {"url": f"lm://127.0.0.1:{closed_port}"},
        }
    )
    found = states(server_checks(config))
    assert found["redis"] == found["lmcache"] == "fail"


def test_a_redis_that_answers_is_told_with_its_latency_and_limits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_small_redis, args=(server,), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        config = parse_config({"redis": {"url": f"redis://127.0.0.1:{port}/0"}})
        [check, _] = server_checks(config)
        thread.join(60)
    assert check.state.value == "warn" and "answers in" in check.said
    assert "maxmemory" in check.mend and "no limit" in check.said


def _small_redis(server: socket.socket) -> None:
    """Answers every command, INFO with a server that has no limit."""
    info = b"used_memory:1048576\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
    connection, _ = server.accept()
    with connection, suppress(ConnectionError):  # It may be hung up on amid an answer.
        while request := connection.recv(65536):
            for command in request.split(b"*")[1:]:
                if b"CLUSTER" in command.upper():
                    connection.sendall(b"-ERR no cluster\r\n")
                elif b"INFO" in command.upper():
                    connection.sendall(b"$%d\r\n%s\r\n" % (len(info), info))
                else:
                    connection.sendall(b"+OK\r\n")


def test_hashes_that_need_a_seed_are_said() -> None:
    assert hash_check(is_shared=False, seed=None).state.value == "ok"
    assert hash_check(is_shared=True, seed=None).state.value == "warn"
    assert hash_check(is_shared=True, seed="0").state.value == "ok"


def test_wrong_settings_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "agentkv.yaml"
    file.write_text("dram: {size: 3}\n")
    with pytest.raises(ConfigError, match=r"agentkv\.yaml: dram\.size"):
        list(install_checks(file))
