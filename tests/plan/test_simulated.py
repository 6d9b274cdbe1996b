"""What the simulator is given of a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from passport.configs import GEMMA3
from plan.builders import GB, LONG, node, passport_70b
from sim.builders import made_up_trace

from agentkv.passport.passport import Serving, make_passport
from agentkv.plan.from_trace import read_recorded
from agentkv.plan.links import LINKS
from agentkv.plan.simulated import SimulationRequest, make_profile, prepare_simulation
from agentkv.plan.tiers import Tier
from agentkv.sim.profiles import PROFILES

NODE = node(hbm_bytes=80 * GB, weights_bytes=140 * GB, runtime_bytes=4.5 * GB)


def rows(**waits: float | None) -> list[str]:
    return [
        json.dumps(
            {
                **{"session_id": "a", "turn": number, "input_tokens": tokens, "output_tokens": 10},
                **{"prefix_turn": number - 1, "prefix_tokens": 100, "shared_prefix_tokens": 50},
                "wait_s": waits.get(f"w{number}"),
            }
        )
        for number, tokens in enumerate((1000, 3000, 5000))
    ]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        json.dumps(
            {
                **{"session_id": session.name, "turn": number, "src": "made-up"},
                **{"input_tokens": turn.prompt_tokens, "output_tokens": turn.output_tokens},
                **{"prefix_turn": turn.prefix_turn, "prefix_tokens": turn.prefix_tokens},
                **{"shared_prefix_tokens": session.shared_tokens, "wait_s": turn.wait_s},
            }
        )
        for session in made_up_trace()
        for number, turn in enumerate(session.turns)
    ]
    path.write_text("\n".join(lines))
    return path


def request(trace: Path, *sessions: int) -> SimulationRequest:
    return SimulationRequest(trace, sessions, ("lru",), hours=0.01, num_seeds=1, mfu=0.35)


def test_the_profile_of_the_documents_node_is_the_published_one() -> None:
    """The simulator's own `70b` has pool, bytes, links and reads of the same eight H100."""
    found, published = make_profile(passport_70b(), NODE, 32_768, 0.35), PROFILES["70b"]

    assert found.pool_tokens == pytest.approx(published.pool_tokens, rel=1e-3)
    assert found.bytes_per_token == published.bytes_per_token
    assert found.load_bytes_per_s == published.load_bytes_per_s
    assert found.kv_read_bytes_per_s == published.kv_read_bytes_per_s
    assert found.prefill_x0_tokens == pytest.approx(published.prefill_x0_tokens, rel=0.02)
    assert found.decode_step_s == pytest.approx(139 / (0.75 * 8 * 3350), rel=0.01)
    assert found.prefill_tokens_per_s == pytest.approx(0.35 * 8 * 990e12 / (2 * 70.55e9), rel=1e-3)


def test_windows_make_tokens_of_long_contexts_cheap() -> None:
    gemma = make_passport({**GEMMA3, **LONG}, "gemma", Serving())
    one = node(num_devices=1, tensor_parallel=1, weights_bytes=2 * GB)

    short = make_profile(gemma, one, 256, 0.35)
    long = make_profile(gemma, one, 100_000, 0.35)

    assert short.bytes_per_token == 26 * 1024
    assert long.bytes_per_token == pytest.approx(4 * 1024 + 512 * 22 * 1024 / 100_000)


def test_tiers_and_agents_are_dealt_to_replicas(trace: Path) -> None:
    two = node(num_devices=16, hbm_bytes=80 * GB, weights_bytes=140 * GB, runtime_bytes=4.5 * GB)
    tiers = (Tier("dram", 928 * GB, LINKS["pcie5"]), Tier("ssd", 4640 * GB, LINKS["nvme4"]))
    prepared, plan = prepare_simulation(passport_70b(), two, tiers, request(trace, 20, 40), 5000)
    per_agent = prepared.totals.private_tokens / plan.profile.pool_tokens

    assert plan.dram == (pytest.approx(1.0, rel=1e-3),)
    assert plan.tiers[0].pool_ratio == pytest.approx(5.0, rel=1e-3)
    assert plan.tiers[0].load_bytes_per_s == 3.5e9
    assert plan.oversubscription == pytest.approx((10 * per_agent, 20 * per_agent))


def test_contexts_of_a_trace_count_by_the_time_they_lie_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows(w0=9.0, w1=99.0)))
    found = read_recorded(path, None)

    # The last turn has no wait after it: the median, 99 s, is taken, as the simulator does.
    assert found.context.mean == pytest.approx((1000 * 10 + 3000 * 100 + 5000 * 100) / 210)
    assert found.waits.mean == pytest.approx(54)
    assert (found.output_tokens, found.shared_tokens) == (10, 50)


def test_turns_beyond_the_models_context_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows(w0=9.0, w1=9.0)))

    assert read_recorded(path, 4000).context.most == 3000
