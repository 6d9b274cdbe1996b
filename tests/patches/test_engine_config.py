"""Building vLLM's config: agentkv's settings are settled once, and others' are left alone."""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentkv import capacity
from agentkv.errors import ConfigError
from agentkv.patches.engine_config import is_selected
from agentkv.patches.vllm_settings import RESERVED_CORES, free_memory_bytes

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("small_pool")


def transfer(**changes: Any) -> KVTransferConfig:
    """The user's KV transfer config: agentkv with a small DRAM tier, changed as wanted."""
    fields: dict[str, Any] = {
        "kv_connector": "agentkv",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"dram": {"size_bytes": "64MiB"}},
    }
    return KVTransferConfig(**{**fields, **changes})


def build(model: str, kv_transfer_config: object, **args: Any) -> VllmConfig:
    engine_args = EngineArgs(
        model=model, skip_tokenizer_init=True, kv_transfer_config=kv_transfer_config, **args
    )
    return engine_args.create_engine_config()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What agentkv logs through vLLM's logger."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.agentkv")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_the_settings_reach_every_process_resolved(model: str) -> None:
    config = build(model, transfer()).kv_transfer_config
    assert config.kv_connector_extra_config["cpu_bytes_to_use"] == 64 * MIB
    assert config.kv_connector_extra_config["agentkv"]["dram"]["size_bytes"] == 64 * MIB
    assert config.kv_connector_extra_config["spec_name"] == "AgentKVSpec"
    assert config.kv_load_failure_policy == "recompute"


def test_auto_becomes_a_number(model: str) -> None:
    config = build(model, transfer(kv_connector_extra_config={})).kv_transfer_config
    assert config.kv_connector_extra_config["cpu_bytes_to_use"] >= MIB


def test_a_mapping_and_a_class_with_a_module_path_select_agentkv_too(model: str) -> None:
    by_mapping = {"kv_connector": "agentkv", "kv_role": "kv_both"}
    by_class = transfer(
        kv_connector="AgentKVConnector", kv_connector_module_path="agentkv.connectors.connector"
    )
    for given in (by_mapping, by_class):
        extra = build(model, given).kv_transfer_config.kv_connector_extra_config
        assert extra["spec_name"] == "AgentKVSpec"


def test_the_users_own_object_stays_as_it_was_and_can_be_used_again(model: str) -> None:
    given = transfer()
    first = build(model, given).kv_transfer_config
    assert given.kv_connector_extra_config == {"dram": {"size_bytes": "64MiB"}}
    assert first.engine_id == given.engine_id
    assert build(model, given).kv_transfer_config == first


def test_building_twice_from_the_same_arguments_gives_the_same_and_says_it_once(
    model: str, log: list[str]
) -> None:
    engine_args = EngineArgs(model=model, skip_tokenizer_init=True, kv_transfer_config=transfer())
    first = engine_args.create_engine_config().kv_transfer_config
    assert engine_args.create_engine_config().kv_transfer_config == first
    assert log == [
        "agentkv: policy expected_cost, DRAM tier of 64MiB (67108864 bytes) per engine, "
        "storing the KV of prompts and answers"
    ]


def test_another_connector_is_left_alone(model: str, log: list[str]) -> None:
    given = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 64 * MIB},
    )
    config = build(model, given).kv_transfer_config
    assert config.kv_connector_extra_config == {"cpu_bytes_to_use": 64 * MIB}
    assert config.kv_load_failure_policy == "fail"
    assert build(model, None).kv_transfer_config is None
    assert log == []


def multi(*names: str, **settings: Any) -> dict[str, Any]:
    """A MultiConnector of these; the settings are agentkv's."""
    parts = [
        {
            "kv_connector": name,
            "kv_role": "kv_both",
            "kv_connector_extra_config": settings if name == "agentkv" else {},
        }
        for name in names
    ]
    return {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": parts}}


def test_as_a_part_of_a_multi_connector_its_settings_are_settled_in_place(model: str) -> None:
    changes = multi("NixlConnector", "agentkv", dram={"size_bytes": "64MiB"})
    config = build(model, transfer(**changes)).kv_transfer_config
    other, ours = config.kv_connector_extra_config["connectors"]
    assert other["kv_connector_extra_config"] == {}
    assert ours["kv_connector_extra_config"]["cpu_bytes_to_use"] == 64 * MIB


@pytest.mark.parametrize(
    ("changes", "args", "line"),
    [
        (
            {"kv_connector_extra_config": {"dram": {"size_byte": 1}}},
            {},
            "kv_connector_extra_config.dram.size_byte: unknown key; did you mean dram.size_bytes?",
        ),
        (
            {"kv_role": "kv_producer"},
            {},
            'kv_role: agentkv needs "kv_both", is "kv_producer": it stores and loads',
        ),
        (
            {},
            {"kv_offloading_size": 1.0},
            "--kv-offloading-size: replaces agentkv by vLLM's own offloading; "
            "remove it and set dram.size_bytes instead",
        ),
        (
            multi("agentkv", "agentkv"),
            {},
            "kv_connector_extra_config.connectors: agentkv is there twice; once will do",
        ),
        (
            multi("agentkv", "OffloadingConnector"),
            {},
            "kv_connector_extra_config.connectors: OffloadingConnector is what agentkv builds on; "
            "remove it",
        ),
        (
            multi("agentkv", "NixlConnector"),
            {},
            "kv_connector_extra_config.connectors: put NixlConnector before agentkv: vLLM passes "
            "on the handshake of the first one that has one",
        ),
    ],
)
def test_what_cannot_work_stops_the_start_with_one_line(
    model: str, changes: dict[str, Any], args: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(model, transfer(**changes), **args)
    assert str(caught.value) == line


def test_prefix_caching_switched_off_is_warned_about(model: str, log: list[str]) -> None:
    build(model, transfer(), enable_prefix_caching=False)
    assert any("prefix caching is off" in line for line in log)


@pytest.mark.parametrize(
    "given",
    [None, {}, {"kv_connector": None}, {"kv_connector_extra_config": None}, "agentkv", object()],
)
def test_whatever_stands_in_the_field_is_not_taken_for_agentkv(given: object) -> None:
    assert not is_selected(given)


def test_the_engines_of_a_machine_share_its_memory(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_available_bytes", lambda: 5 << 30)
    alone = free_memory_bytes(EngineArgs(model=model), is_auto=False)
    assert alone == 5 << 30
    four = EngineArgs(model=model, data_parallel_size=4)
    assert free_memory_bytes(four, is_auto=False) == alone // 4


def test_auto_leaves_room_for_vllms_own_pool_on_the_cpu_platform(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_available_bytes", lambda: 5 << 30)
    assert free_memory_bytes(EngineArgs(model=model), is_auto=True) == 4 << 30
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    explicit = EngineArgs(model=model, kv_cache_memory_bytes=2 << 30)
    assert free_memory_bytes(explicit, is_auto=True) == 3 << 30
    monkeypatch.setattr(capacity, "total_memory_bytes", lambda: 5 << 30)
    assert 0 < free_memory_bytes(EngineArgs(model=model), is_auto=True) < 1 << 30


def test_on_the_cpu_platform_no_core_is_set_aside_for_the_connector(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would reserve two and, on a machine with two, let compute and scheduler fight."""
    monkeypatch.delenv(RESERVED_CORES, raising=False)
    build(model, None)
    assert RESERVED_CORES not in os.environ
    build(model, transfer())
    assert os.environ[RESERVED_CORES] == "1"


def test_the_users_own_number_of_reserved_cores_stands(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RESERVED_CORES, "3")
    build(model, transfer())
    assert os.environ[RESERVED_CORES] == "3"
