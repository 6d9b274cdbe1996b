"""Where a model's `config.json` lies: a file, a folder, or the Hugging Face cache of this machine.

The network is never asked: a plan must not depend on what a server answers today.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agentkv.errors import ConfigError

_FILE = "config.json"
_MAX_BYTES = 16 * 2**20


def find_config(model: str) -> Path:
    """The path of the model's `config.json`. Raises ConfigError where there is none."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / _FILE).is_file():
            return path / _FILE
        raise ConfigError(f"{model}: the folder has no {_FILE}; give the folder of a model")
    found = _in_cache(model)
    if found is None:
        raise ConfigError(
            f"{model}: no such file or folder, and no such model in the Hugging Face cache"
            f" ({_cache_folder()}); download it first (hf download {model} {_FILE}) or give the"
            " path of its config.json"
        )
    return found


def read_config(path: Path) -> dict[str, Any]:
    """The object in the file. Raises ConfigError for what is no JSON object."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: far too large for a model's config.json")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON ({error}); give a model's config.json") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is no JSON object; give a model's config.json")
    return data


def _cache_folder() -> Path:
    """As huggingface_hub finds it: HF_HUB_CACHE, else `hub` in HF_HOME."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    return Path(home).expanduser() / "hub"


def _in_cache(model: str) -> Path | None:
    """The config of the snapshot that `main` names, else of the newest one."""
    if model.count("/") > 1 or not model.strip("/.~"):
        return None
    folder = _cache_folder() / ("models--" + model.replace("/", "--"))
    main = folder / "refs" / "main"
    if main.is_file():
        named = folder / "snapshots" / main.read_text(encoding="utf-8").strip() / _FILE
        if named.is_file():
            return named
    found = sorted(folder.glob(f"snapshots/*/{_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
