"""A passport says of every layer what vLLM's own model says, and counts its parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from passport.configs import BAMBA, BUILT, KIMI_LINEAR

from agentkv.passport.layers import Layer, device_share
from agentkv.passport.passport import Passport, Serving, make_passport

_ORACLE = Path(__file__).with_name("vllm_oracle.py")
# vLLM's CPU platform keeps recurrent states in float32.
_SERVING = Serving(ssm_dtype="float32", block_tokens=32)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process for all models: vLLM is slow to import, and wants one model at a time."""
    folder = tmp_path_factory.mktemp("oracle")
    source, target = folder / "configs.json", folder / "found.json"
    source.write_text(json.dumps(BUILT))
    command = [sys.executable, str(_ORACLE), str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(json.loads(target.read_text()))


@pytest.mark.parametrize("name", BUILT)
def test_a_passport_is_what_vllm_allocates(name: str, engine: dict[str, Any]) -> None:
    passport = make_passport(BUILT[name], name, _SERVING)
    theirs = {tuple(layer): count for layer, count in engine[name]["layers"]}
    assert _layers(passport) == theirs
    assert passport.weights.parameters.total == engine[name]["parameters"]


@pytest.mark.parametrize("name", [name for name in BUILT if "deepseek" not in name])
def test_the_block_is_the_one_that_vllm_sets(name: str, engine: dict[str, Any]) -> None:
    passport = make_passport(BUILT[name], name, _SERVING)
    assert passport.block_tokens == engine[name]["block_tokens"]


def _layers(passport: Passport) -> Counter[tuple[str, float, int | None]]:
    def seen(layer: Layer) -> tuple[str, float, int | None]:
        if layer.states:
            return "state", layer.state_bytes(passport.dtypes), None
        return "tokens", layer.token_bytes(passport.dtypes), layer.window_tokens

    return Counter(map(seen, passport.layers))


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("kda", KIMI_LINEAR),
        ("bamba", BAMBA),
        ("groups", {**BAMBA, "mamba_n_groups": 8}),
    ],
)
def test_states_are_split_as_vllm_splits_them(
    shape: str, data: dict[str, Any], engine: dict[str, Any]
) -> None:
    """Of models that its CPU platform does not build, vLLM's formulas for the state are asked."""
    layers = make_passport(data, shape, _SERVING).layers
    (states,) = {layer.states for layer in layers if layer.states}
    for degree, sizes in engine["shapes"].items():
        ours = [state.elements * device_share(state.shards, int(degree)) for state in states]
        assert sum(ours[:-1]) == sizes[shape][0]
        assert ours[-1] == sizes[shape][1]
