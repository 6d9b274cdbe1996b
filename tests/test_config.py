"""Settings: what is accepted, what each slip is answered with, and what vLLM is given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.config import (
    AgentKVConfig,
    PolicyName,
    config_from_extra,
    load_config_file,
    parse_config,
    resolve_extra_config,
)
from agentkv.config_values import config_paths
from agentkv.errors import ConfigError
from agentkv.policy import POLICIES

GIB = 1 << 30
MIB = 1 << 20


def free(num_bytes: int) -> Callable[[], int]:
    """A machine with so much free memory."""
    return lambda: num_bytes


def refusal(mapping: object) -> str:
    """The one line that a wrong mapping is answered with."""
    with pytest.raises(ConfigError) as caught:
        parse_config(mapping)
    line = str(caught.value)
    assert "\n" not in line
    return line


def dram(**keys: Any) -> dict[str, Any]:
    return {"dram": keys}


WRONG = [
    (dram(size_byte="4GiB"), "dram.size_byte: unknown key; did you mean dram.size_bytes?"),
    ({"size_bytes": "4GiB"}, "size_bytes: unknown key; did you mean dram.size_bytes?"),
    ({"hold": {"lease": 3}}, "hold.lease: unknown key; did you mean hold.lease_s?"),
    (
        {"hold": {"wibble": 3}},
        "hold.wibble: unknown key; valid here: pool_fraction, lease_s",
    ),
    (
        dram(size_bytes="lots"),
        'dram.size_bytes: "lots" is not a size; write "auto", a size such as "32GiB", '
        "or a whole number of bytes",
    ),
    (
        dram(size_bytes=True),
        'dram.size_bytes: true is not a size; write "auto", a size such as "32GiB", '
        "or a whole number of bytes",
    ),
    (
        dram(size_bytes=4),
        'dram.size_bytes: must be at least 1MiB, is 4 bytes; did you mean "4GiB"?',
    ),
    (dram(size_bytes=0), "dram.size_bytes: must be at least 1MiB, is 0 bytes"),
    (dram(size_bytes=-1), "dram.size_bytes: must be at least 1MiB, is -1 bytes"),
    (dram(size_bytes="-1"), "dram.size_bytes: must be at least 1MiB, is -1 bytes"),
    (dram(size_bytes=MIB - 1), "dram.size_bytes: must be at least 1MiB, is 1048575 bytes"),
    (
        dram(size_bytes="4GiB", auto_fraction=0.3),
        "dram: auto_fraction has no effect when size_bytes is given; remove one of the two",
    ),
    (
        dram(size_bytes="4GiB", auto_max_bytes="8GiB"),
        "dram: auto_max_bytes has no effect when size_bytes is given; remove one of the two",
    ),
    (dram(auto_fraction=0), "dram.auto_fraction: must be greater than 0, is 0"),
    (dram(auto_fraction=1.5), "dram.auto_fraction: must be less than or equal to 1, is 1.5"),
    ({"dram": "4GiB"}, 'dram: must be a mapping of keys, is "4GiB"'),
    ({"dram": None}, "dram: must be a mapping of keys, is null"),
    ({"hold": {"lease_s": 0}}, "hold.lease_s: must be greater than 0, is 0"),
    ({"hold": {"lease_s": -5}}, "hold.lease_s: must be greater than 0, is -5"),
    ({"hold": {"lease_s": float("inf")}}, "hold.lease_s: must be a finite number, is inf"),
    (
        {"hold": {"pool_fraction": 1.01}},
        "hold.pool_fraction: must be less than or equal to 1, is 1.01",
    ),
    (
        {"policy": "brake_even"},
        'policy: unknown value "brake_even"; did you mean break_even?',
    ),
    (
        {"policy": "fifo"},
        'policy: unknown value "fifo"; one of: expected_cost, expected_cost_nopredict, break_even, '
        "always_hold, always_swap, always_recompute, lru, fixed_ttl, infercept, continuum, "
        "thunderagent, progress_ttl",
    ),
    (
        {"min_load_tokens": -1},
        'min_load_tokens: must not be negative, is -1; write "auto" or a whole number',
    ),
    (
        {"min_load_tokens": "few"},
        'min_load_tokens: "few" is not a count; write "auto" or a whole number',
    ),
    ({"copy_threads": 0}, "copy_threads: must be greater than or equal to 1, is 0"),
    ({"copy_threads": True}, "copy_threads: must be a number, is true"),
    ({"prices": {"stall_s": -0.1}}, "prices.stall_s: must be greater than or equal to 0, is -0.1"),
    ({"ledger": {"path": 3}}, "ledger.path: must be a path, is 3"),
    (
        {"offloading": {"cpu_bytes_to_use": 1}},
        "offloading.cpu_bytes_to_use: set by agentkv; set dram.size_bytes instead",
    ),
    (
        {"offloading": {"offload_prompt_only": True}},
        "offloading.offload_prompt_only: set by agentkv; set store_decode_blocks instead",
    ),
    (
        {"offloading": {"spec_name": "X"}},
        "offloading.spec_name: set by agentkv; agentkv brings its own",
    ),
    ({"cpu_bytes_to_use": 1}, "cpu_bytes_to_use: set by agentkv; set dram.size_bytes instead"),
    ({"agentkv": {}}, "agentkv: set by agentkv; write its keys at the top level"),
    (
        {"policy": "always_hold", "copy_threads": 0, "hold": {"lease_s": 0}},
        "hold.lease_s: must be greater than 0, is 0 (1 more to mend after this)",
    ),
]


@pytest.mark.parametrize(("mapping", "line"), WRONG, ids=[line[:40] for _, line in WRONG])
def test_a_wrong_setting_is_answered_with_one_exact_line(mapping: object, line: str) -> None:
    assert refusal(mapping) == f"kv_connector_extra_config.{line}"


def test_an_unknown_key_at_the_top_lists_the_valid_ones_and_the_place_for_native_settings() -> None:
    line = refusal({"block_size": 64})
    assert line.startswith("kv_connector_extra_config.block_size: unknown key; valid here: dram, ")
    assert line.endswith("; a setting of vLLM's native offloading goes under offloading")


@pytest.mark.parametrize("mapping", [[], "dram", 3, None])
def test_settings_that_are_no_mapping_are_refused(mapping: object) -> None:
    assert refusal(mapping).startswith("kv_connector_extra_config: must be a mapping of keys")


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("4GB", 4 * 10**9),
        ("4GiB", 4 * GIB),
        ("4 gib", 4 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("512MiB", 512 * MIB),
        (4e9, 4 * 10**9),
        ("4e9", 4 * 10**9),
        ("4000000000", 4 * 10**9),
        ("4g", 4 * 10**9),
        (MIB, MIB),
        ("auto", "auto"),
    ],
)
def test_a_size_may_be_written_in_many_ways(written: object, num_bytes: object) -> None:
    assert parse_config(dram(size_bytes=written)).dram.size_bytes == num_bytes


@given(st.integers(min_value=1, max_value=4096), st.sampled_from(["MiB", "GiB", "TiB"]))
def test_a_binary_size_means_powers_of_1024(count: int, unit: str) -> None:
    power = {"MiB": 2, "GiB": 3, "TiB": 4}[unit]
    assert parse_config(dram(size_bytes=f"{count}{unit}")).dram.size_bytes == count * 1024**power


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)


@given(anything)
def test_no_value_whatever_gets_past_the_one_line_answer(value: object) -> None:
    for path in config_paths(AgentKVConfig):
        section, _, leaf = path.rpartition(".")
        try:
            parse_config({section: {leaf: value}} if section else {leaf: value})
        except ConfigError as error:
            assert str(error).startswith(f"kv_connector_extra_config.{path.split('.')[0]}")
            assert len(str(error).splitlines()) == 1


def test_words_from_vllms_dotted_flags_become_values() -> None:
    config = parse_config(
        {
            "store_decode_blocks": "false",
            "copy_threads": "8",
            "min_load_tokens": "256",
            "hold": {"lease_s": "30", "pool_fraction": "0.5"},
        }
    )
    assert config.store_decode_blocks is False
    assert (config.copy_threads, config.min_load_tokens) == (8, 256)
    assert (config.hold.lease_s, config.hold.pool_fraction) == (30.0, 0.5)


def test_a_place_where_no_file_can_be_made_stops_the_start(tmp_path: Path) -> None:
    for path, problem in ((tmp_path, "cannot write"), (tmp_path / "no" / "file", "does not exist")):
        with pytest.raises(ConfigError, match=f"predict.state_path: .*{problem}"):
            resolve_extra_config(
                {"predict": {"state_path": str(path)}}, free_memory=lambda: 1 << 30
            )


def test_the_defaults_are_those_of_the_readme() -> None:
    config = parse_config({})
    assert config == AgentKVConfig()
    assert (config.policy, config.dram.size_bytes, config.hold.lease_s) == (
        "expected_cost",
        "auto",
        600.0,
    )


def test_every_policy_that_exists_can_be_chosen() -> None:
    assert set(get_args(PolicyName)) == set(POLICIES)


def test_every_setting_is_described() -> None:
    for path in config_paths(AgentKVConfig):
        model: Any = AgentKVConfig
        *sections, leaf = path.split(".")
        for section in sections:
            model = model.model_fields[section].annotation
        assert model.model_fields[leaf].description, path


# What vLLM is given.


def test_auto_takes_half_of_the_free_memory_in_whole_mebibytes() -> None:
    extra = resolve_extra_config({}, free_memory=free(9 * GIB + 12345))
    assert extra["cpu_bytes_to_use"] == 4 * GIB + 512 * MIB


def test_auto_takes_no_more_than_its_maximum() -> None:
    extra = resolve_extra_config(dram(auto_max_bytes="2GiB"), free_memory=free(100 * GIB))
    assert extra["cpu_bytes_to_use"] == 2 * GIB


def test_a_given_size_is_taken_as_it_is() -> None:
    extra = resolve_extra_config(dram(size_bytes="3GiB"), free_memory=free(4 * GIB))
    assert extra["cpu_bytes_to_use"] == 3 * GIB
    assert config_from_extra(extra).dram.size_bytes == 3 * GIB


def test_more_dram_than_the_machine_has_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_extra_config(dram(size_bytes="999GiB"), free_memory=free(20 * GIB))
    assert str(caught.value) == (
        "kv_connector_extra_config.dram.size_bytes: 999GiB is more than the 20GiB free for one "
        'engine (the least of memory, container limit and /dev/shm); take less, or "auto"'
    )


def test_auto_on_a_machine_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dram\.size_bytes: auto finds only 1KiB for one engine"):
        resolve_extra_config({}, free_memory=free(1024))


def test_vllm_is_told_to_load_our_classes_and_the_experts_keys() -> None:
    extra = resolve_extra_config(
        {"store_decode_blocks": False, "offloading": {"block_size": 256}}, free_memory=free(GIB)
    )
    del extra["agentkv"]
    assert extra == {
        "spec_name": "AgentKVSpec",
        "spec_module_path": "agentkv.connectors.spec",
        "cpu_bytes_to_use": GIB // 2,
        "offload_prompt_only": True,
        "eviction_policy": "AgentKVCachePolicy",
        "cache_policy_module_path": "agentkv.connectors.cache_policy",
        "self_describing_kv_events": True,
        "block_size": 256,
    }


def test_resolving_twice_changes_nothing_and_does_not_look_at_the_machine(tmp_path: Path) -> None:
    user = {
        "policy": "always_swap",
        "hold": {"lease_s": 5},
        "ledger": {"path": str(tmp_path / "ledger.jsonl")},
        "offloading": {"block_size": 256},
    }
    once = resolve_extra_config(user, free_memory=free(8 * GIB))

    def unexpected() -> int:
        raise AssertionError("the machine was looked at again")

    assert resolve_extra_config(once, free_memory=unexpected) == once
    as_sent_to_a_worker = json.loads(json.dumps(once))
    assert resolve_extra_config(as_sent_to_a_worker, free_memory=unexpected) == once
    assert config_from_extra(once).policy == "always_swap"


def test_settings_can_be_read_before_and_after_they_are_resolved() -> None:
    user = {"hold": {"lease_s": 5}}
    resolved = resolve_extra_config(user, free_memory=free(GIB))
    assert config_from_extra(user).hold == config_from_extra(resolved).hold


def test_a_ledger_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "ledger.jsonl"
    with pytest.raises(ConfigError) as caught:
        resolve_extra_config({"ledger": {"path": str(path)}}, free_memory=free(GIB))
    assert str(caught.value) == (
        f"kv_connector_extra_config.ledger.path: directory {path.parent} does not exist; "
        "create it first"
    )


def test_a_ledger_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.path: cannot write .*: Is a directory"):
        resolve_extra_config({"ledger": {"path": str(tmp_path)}}, free_memory=free(GIB))


def test_a_relative_ledger_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = resolve_extra_config({"ledger": {"path": "out.jsonl"}}, free_memory=free(GIB))
    assert extra["agentkv"]["ledger"]["path"] == str(tmp_path / "out.jsonl")


# The settings file.


def written(directory: Path, text: str, name: str = "agentkv.yaml") -> Path:
    file = directory / name
    file.write_text(text)
    return file


def test_a_yaml_file_holds_the_same_keys(tmp_path: Path) -> None:
    file = written(tmp_path, "dram:\n  size_bytes: 32GiB\npolicy: always_swap\n")
    assert load_config_file(file) == {"dram": {"size_bytes": "32GiB"}, "policy": "always_swap"}


def test_a_json_file_holds_the_same_keys(tmp_path: Path) -> None:
    file = written(tmp_path, '{\n\t"hold": {"lease_s": 30}}', "agentkv.json")
    assert load_config_file(file) == {"hold": {"lease_s": 30}}


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config_file(written(tmp_path, "# nothing set\n")) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "dram:\n  size_byte: 1GiB\n",
            "dram.size_byte: unknown key; did you mean dram.size_bytes?",
        ),
        ("dram: [\n", "line 2: not valid YAML: "),
        ("- dram\n", "must be a mapping of keys, is a list"),
        ("just text\n", "must be a mapping of keys, is str"),
    ],
)
def test_a_wrong_file_is_named_with_its_problem(tmp_path: Path, text: str, problem: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config_file(file)
    assert str(caught.value).startswith(f"{file}: {problem}")


def test_a_json_file_with_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, '{\n"policy": }', "agentkv.json")
    with pytest.raises(ConfigError, match=r"agentkv\.json: line 2: not valid JSON: "):
        load_config_file(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_file(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "agentkv.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read: not a text file"):
        load_config_file(file)
