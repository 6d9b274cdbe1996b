"""What the installed vLLM is, and whether it fits, asked in a process of its own.

Why another process: importing vLLM takes seconds and gigabytes, sets up logging, and may end the
process where torch and vLLM do not belong together. No engine is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.supported import INSTALL_HINT, TESTED_VLLM, is_supported

_TIMEOUT_S = 180
_MARK = "agentkv-doctor:"
_PROBE = ("-m", "agentkv.connectors.self_probe", _MARK)


@dataclass(frozen=True, slots=True)
class Probed:
    """`found` has a name's answer, or under name_error why there is none."""

    found: dict[str, str]

    def error(self, name: str) -> str:
        return self.found.get(f"{name}_error", "")


def run_probe() -> Probed:
    """Asks this interpreter's vLLM. Never raises: what goes wrong is an answer, too."""
    try:
        done = subprocess.run(
            [sys.executable, *_PROBE],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probed({"vllm_error": f"{type(error).__name__}: {error}"})
    line = next((each for each in done.stdout.splitlines() if each.startswith(_MARK)), None)
    if line is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Probed({"vllm_error": f"the process ended with {done.returncode}: {last}"})
    return Probed(json.loads(line.removeprefix(_MARK)))


def vllm_checks(probe: Callable[[], Probed] = run_probe) -> Iterator[Check]:
    """Version, the parts we build on, what torch it runs with, and whether it will load us."""
    probed = probe()
    version = probed.found.get("vllm")
    if version is None:
        yield fail("vllm", f"cannot be imported: {probed.error('vllm')}", INSTALL_HINT)
    else:
        yield _version_check(version, probed.found.get("device", "unknown"))
        yield _fit_check(probed)
    yield _torch_check(probed)
    yield _entry_point_check()
    yield plugins_check(os.environ.get("VLLM_PLUGINS"))


def _version_check(version: str, device: str) -> Check:
    if is_supported(version):
        return ok("vllm", f"{version} on {device} (tested with {TESTED_VLLM})")
    return fail("vllm", f"{version} is not a tested version", INSTALL_HINT)


def _fit_check(probed: Probed) -> Check:
    problem = probed.error("probe") or probed.error("patches")
    if problem:
        return fail("vllm's parts", problem, INSTALL_HINT)
    return ok("vllm's parts", "every name that agentkv builds on is as it knows it")


def _torch_check(probed: Probed) -> Check:
    version = probed.found.get("torch")
    if version is None:
        mend = "install the torch that your vLLM names"
        return fail("torch", f"cannot be imported: {probed.error('torch')}", mend)
    vision = probed.found.get("torchvision")
    problem = probed.error("torchvision")
    if vision is None and "No module named 'torchvision'" not in problem:
        mend = "install the torchvision that belongs to this torch, or remove it"
        return fail("torch", f"{version}, and torchvision does not fit it: {problem}", mend)
    if vision is not None and _build(vision) != _build(version):
        mend = "take both from one index; models with images may fail"
        return warn("torch", f"{version}, torchvision {vision}: builds of two kinds", mend)
    return ok("torch", version if vision is None else f"{version}, torchvision {vision}")


def _build(version: str) -> str:
    """The kind of a build: what stands after the plus, "cpu" or "cu128"."""
    return version.partition("+")[2]


def _entry_point_check() -> Check:
    found = [each.name for each in metadata.entry_points(group="vllm.general_plugins")]
    if "agentkv" in found:
        return ok("plugin", "vLLM finds agentkv among its plugins")
    return fail("plugin", "vLLM does not find agentkv", "pip install it into vLLM's environment")


def plugins_check(allowed: str | None) -> Check:
    """Of the variable VLLM_PLUGINS, which names all plugins that may be loaded."""
    if allowed is None:
        return ok("VLLM_PLUGINS", "not set: every plugin is loaded")
    if "agentkv" in [name.strip() for name in allowed.split(",")]:
        return ok("VLLM_PLUGINS", f'"{allowed}" lets agentkv through')
    mend = 'add "agentkv" to it, or start with `agentkv serve`'
    return fail("VLLM_PLUGINS", f'"{allowed}" keeps agentkv out', mend)
