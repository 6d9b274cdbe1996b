"""What users write of systems and regimes, and the servers and sizes that come of it."""

from pathlib import Path
from typing import Any

import pytest
from demo.builders import planned, session, workload
from tokenizers import Tokenizer
from tokenizers.models import BPE

from agentkv.bench.replay_models import MODELS, BenchModel, check_model, open_model
from agentkv.bench.replay_regimes import (
    MIN_DRAM_BYTES,
    Regime,
    live_tokens,
    longest_request_tokens,
    regimes,
)
from agentkv.bench.replay_settings import (
    Kind,
    ReplaySettings,
    System,
    parse_numbers,
    parse_systems,
)
from agentkv.bench.replay_systems import Setup, is_played, play_key, server_spec
from agentkv.config import AgentKVConfig
from agentkv.demo.agents import ClientKind
from agentkv.demo.servers import ServerSpec
from agentkv.demo.workload import TURN_S
from agentkv.errors import ConfigError

STOCK, NATIVE, OURS, INFINITE = parse_systems("stock,native,agentkv,infinite", (), ClientKind.TAGS)
REGIME = Regime(2.0, 1.0, pool_tokens=640, dram_bytes=640 * 8, kv_bytes_per_token=8)


def setup(**fields: Any) -> Setup:
    settings = ReplaySettings(systems=(STOCK,), **fields)
    model = BenchModel(Path("/m"), Tokenizer(BPE()), 8, is_ours=True, facts={})
    return Setup(settings, model, Path("/f"), all_tokens=3_200, longest_tokens=200, seed=1)


def spec(system: System, regime: Regime = REGIME, **fields: Any) -> ServerSpec:
    return server_spec(system, regime, setup(**fields))


def test_the_default_policy_and_the_clients() -> None:
    assert (OURS.kind, OURS.policy) == (Kind.AGENTKV, AgentKVConfig().policy)
    assert OURS.client is ClientKind.TAGS
    assert {s.client for s in (STOCK, NATIVE, INFINITE)} == {ClientKind.PLAIN}


def test_policies_clients_and_servers_that_run_already() -> None:
    lru, plain, url = parse_systems(
        "agentkv:lru, agentkv:break_even@plain",
        ["mine=http://box:8000/v1#m"],
        ClientKind.SDK,
    )
    assert (lru.name, lru.policy, lru.client) == ("agentkv:lru", "lru", ClientKind.SDK)
    assert (plain.policy, plain.client) == ("break_even", ClientKind.PLAIN)
    assert (url.name, url.url, url.model, url.kind) == ("mine", "http://box:8000", "m", Kind.URL)


@pytest.mark.parametrize(
    ("systems", "urls", "said"),
    [
        ("stok", [], "stok: unknown; choose from stock, native, agentkv, infinite"),
        ("agentkv:best", [], "no such policy; choose from expected_cost"),
        ("agentkv@telepathy", [], "no such client; choose from plain"),
        ("native:lru", [], "only agentkv has policy, client and settings"),
        ("agentkv+min_load_tokens", [], "give KEY=VALUE"),
        ("agentkv+min_load_token=1", [], "agentkv.min_load_token=1: min_load_token"),
        ("stock,stock", [], "named twice"),
        ("stock", ["stock=http://x"], "named twice"),
        ("", [], "none is named"),
        ("", ["http://x"], "give NAME=URL"),
        ("", ["a=localhost"], "give NAME=URL"),
    ],
)
def test_a_wrong_system_is_one_line_that_mends_it(systems: str, urls: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_systems(systems, urls, ClientKind.TAGS)


def test_numbers() -> None:
    assert parse_numbers("--dram", "0,1,4,1", may_be_zero=True) == (0.0, 1.0, 4.0)
    for text in ("0", "1,x", "", "-1", "nan"):
        with pytest.raises(ConfigError, match=r"--oversubscription .*as 1,2,4"):
            parse_numbers("--oversubscription", text)


def test_an_unknown_model_names_those_there_are() -> None:
    check_model("tiny")
    with pytest.raises(ConfigError, match="--model huge: neither one of tiny, bench nor a folder"):
        check_model("huge")


def test_a_checkpoint_of_the_users_is_served_as_it_is(tmp_path: Path) -> None:
    made = open_model("bench", tmp_path)
    assert made.is_ours and made.kv_bytes_per_token == MODELS["bench"].kv_bytes_per_token
    found = open_model(str(made.folder), tmp_path / "elsewhere")
    assert not found.is_ours and not (tmp_path / "elsewhere").exists()
    assert found.kv_bytes_per_token == made.kv_bytes_per_token / 2
    assert found.tokenizer.encode("run the tests").ids == made.tokenizer.encode("run the tests").ids
    (made.folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="KeyError: 'num_attention_heads'"):
        check_model(str(made.folder))


def test_options_of_vllm_come_last_on_every_server() -> None:
    for system in (STOCK, NATIVE, OURS, INFINITE):
        command = spec(system, server_args=("--block-size=16",)).command(1)
        assert command.index("--block-size=16") > command.index("--block-size")
        assert "--enforce-eager" in command


def test_live_kv_is_weighed_by_the_time_it_lies_there() -> None:
    turns = [planned(prompt_tokens=100, wait_s=9 * TURN_S), planned(prompt_tokens=1_100)]
    sessions = [session(name, *turns) for name in "ab"]
    one = live_tokens(workload(*sessions), num_agents=1, answer_tokens=0)
    assert one == pytest.approx((10 * 100 + 1 * 1_100) / 11)
    # No more contexts are alive than there are sessions.
    assert live_tokens(workload(*sessions), num_agents=8, answer_tokens=0) == pytest.approx(2 * one)
    assert longest_request_tokens([workload(*sessions)], 8) == 1_108


def test_regimes_follow_from_live_kv_and_are_ordered_by_x() -> None:
    work = workload(*(session(str(n), planned(prompt_tokens=312)) for n in range(8)))
    settings = ReplaySettings(
        systems=(STOCK,), oversubscription=(2.0, 1.0), dram=(0.0, 3.0), num_agents=8
    )
    found = regimes(settings, [work], 10)
    live = 8 * 320
    assert [each.label for each in found] == ["1/3", "2/3", "1/0", "2/0"]
    assert [each.pressure_x(live) for each in found] == [0.25, 0.5, 1.0, 2.0]
    assert [each.pool_tokens for each in found] == [live, live // 2, live, live // 2]
    assert [each.dram_bytes for each in found] == [30 * live, 15 * live, 0, 0]


def test_a_pool_below_the_longest_request_says_how_many_agents_are_needed() -> None:
    work = workload(*(session(str(n), planned(prompt_tokens=1_000)) for n in range(64)))
    settings = ReplaySettings(systems=(STOCK,), oversubscription=(4.0,), num_agents=3)
    with pytest.raises(ConfigError, match=r"longest request, 1,008; give --agents (\d+)") as caught:
        regimes(settings, [work], 10)
    agents = int(str(caught.value).split("--agents ")[1].split()[0])
    enough = ReplaySettings(systems=(STOCK,), oversubscription=(4.0,), num_agents=agents)
    assert len(regimes(enough, [work], 10)) == 1


def test_all_servers_differ_in_pool_and_connector_alone() -> None:
    stock, native, ours, infinite = (spec(s) for s in (STOCK, NATIVE, OURS, INFINITE))
    assert stock.kv_transfer is None and infinite.kv_transfer is None
    assert stock.num_gpu_blocks == native.num_gpu_blocks == ours.num_gpu_blocks == 21
    assert infinite.num_gpu_blocks == 101
    assert native.kv_transfer is not None and ours.kv_transfer is not None
    theirs = native.kv_transfer["kv_connector_extra_config"]
    mine = ours.kv_transfer["kv_connector_extra_config"]
    assert theirs["cpu_bytes_to_use"] == REGIME.dram_bytes
    assert mine["dram"]["size_bytes"] == max(REGIME.dram_bytes, MIN_DRAM_BYTES)
    assert len({(s.max_model_len, s.max_num_seqs, s.block_size) for s in (stock, ours)}) == 1


def test_only_ours_loads_plugins() -> None:
    assert spec(OURS).environment == {}
    for system in (STOCK, NATIVE, INFINITE):
        assert spec(system).environment == {"VLLM_PLUGINS": ""}


def test_the_users_settings_reach_ours_beside_policy_and_dram() -> None:
    extra = {"prefetch": {"enabled": False}, "dram": {"exclusive": False}}
    big = Regime(2.0, 1.0, 640, 8 << 20, 8)
    transfer = spec(OURS, big, extra=extra, keep_logs=Path("/f")).kv_transfer
    assert transfer is not None
    config = transfer["kv_connector_extra_config"]
    assert config["prefetch"] == {"enabled": False}
    assert config["dram"] == {"exclusive": False, "size_bytes": 8 << 20}
    assert config["policy"] == AgentKVConfig().policy
    assert config["ledger"]["path"] == "/f/agentkv_2_1_1.ledger.jsonl"


def test_settings_of_one_system_are_its_own() -> None:
    text = "agentkv:lru@plain+prefetch.enabled=false+min_load_tokens=1"
    (system,) = parse_systems(text, (), ClientKind.TAGS)
    assert (system.policy, system.client) == ("lru", ClientKind.PLAIN)
    extra = {"prefetch": {"enabled": True, "reserve_fraction": 0.1}}
    transfer = spec(system, extra=extra).kv_transfer
    assert transfer is not None
    config = transfer["kv_connector_extra_config"]
    assert config["prefetch"] == {"enabled": False, "reserve_fraction": 0.1}
    assert (config["min_load_tokens"], config["policy"]) == (1, "lru")


def test_what_is_the_same_in_two_regimes_is_played_once() -> None:
    more_dram = Regime(2.0, 4.0, 640, 4 * 640 * 8, 8)
    smaller = Regime(4.0, 1.0, 320, 320 * 8, 8)

    def is_same(system: System, other: Regime) -> bool:
        return play_key(system, REGIME) == play_key(system, other)

    assert is_same(INFINITE, more_dram) and is_same(INFINITE, smaller)
    assert is_same(STOCK, more_dram) and not is_same(STOCK, smaller)
    assert not is_same(NATIVE, more_dram) and not is_same(OURS, more_dram)


def test_native_offloading_without_dram_is_left_out() -> None:
    none = Regime(2.0, 0.0, 640, 0, 8)
    assert [is_played(system, none) for system in (STOCK, NATIVE, OURS)] == [True, False, True]
    transfer = spec(OURS, none).kv_transfer
    assert transfer is not None
    assert transfer["kv_connector_extra_config"]["dram"]["size_bytes"] == MIN_DRAM_BYTES
