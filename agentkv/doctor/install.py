"""All checks of this machine, with the settings that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentkv.config import load_config_file, parse_config
from agentkv.doctor.check_disk import disk_checks
from agentkv.doctor.check_memory import memory_checks
from agentkv.doctor.check_servers import server_checks
from agentkv.doctor.checks import Check
from agentkv.doctor.probe_vllm import vllm_checks


def install_checks(config_file: Path | None) -> Iterator[Check]:
    """From the cheapest to mend to the dearest. Raises ConfigError for settings that are wrong."""
    content = {} if config_file is None else load_config_file(config_file)
    config = parse_config(content, where=f"{config_file}: ")
    yield from vllm_checks()
    yield from memory_checks(config.dram)
    if config.ssd.is_on:
        yield from disk_checks(config.ssd)
    yield from server_checks(config)
