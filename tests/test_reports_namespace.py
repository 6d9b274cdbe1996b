"""Public bug reports about KV that was taken for another model's, dtype's, layout's or image's.

Each is named after its report in `tests/BUG_REPORTS.md`. The configurations are vLLM's own; what is
asked is whether two engines would share entries.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.engine_config import RigConfig, kv_cache_config, vllm_config
from kit.rig import prompt
from safetensors.numpy import save_file
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from agentkv.connectors import fingerprint
from agentkv.connectors.fingerprint import is_hash_stable, namespace_of
from agentkv.connectors.spec import AgentKVSpec
from agentkv.tiers.namespace import Namespace


@pytest.fixture(autouse=True)
def a_small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


class Engine:
    """What an engine is configured to be; `namespace` is where its KV would lie."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        config = RigConfig(**fields)
        self.config: VllmConfig = vllm_config(config)
        self.config.model_config = copy.copy(self.config.model_config)
        self.config.cache_config = copy.copy(self.config.cache_config)
        self.config.model_config.model = str(folder)
        self.kv_cache = kv_cache_config(config)
        self.offloading = build_offloading_config(self.config, self.kv_cache)

    @property
    def namespace(self) -> Namespace:
        return namespace_of(self.config, self.kv_cache, AgentKVSpec(self.offloading))

    def replace(self, **fields: Any) -> None:
        self.offloading = dataclasses.replace(self.offloading, **fields)

    def replace_parallel(self, **fields: Any) -> None:
        self.replace(parallel=dataclasses.replace(self.offloading.parallel, **fields))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_weights(tmp_path, 1)
    return tmp_path


def write_weights(folder: Path, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((64, 64), np.float32)
    save_file({"layer": weights}, folder / "model.safetensors")


def test_two_engines_alike_share(folder: Path) -> None:
    first, second = Engine(folder), Engine(folder, pool_blocks=300, dram_blocks=50, max_num_seqs=9)
    assert first.config.kv_transfer_config != second.config.kv_transfer_config
    assert first.namespace.digest == second.namespace.digest


def test_where_the_model_lies_and_what_it_is_called_does_not_matter(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        write_weights(tmp_path / name, 1)
    digests = {Engine(tmp_path / name).namespace.digest for name in ("here", "there")}
    assert len(digests) == 1


def differences(change: Callable[[Engine], object], folder: Path, **fields: Any) -> list[str]:
    """The fields in which a changed engine's namespace is another."""
    before, after = Engine(folder, **fields), Engine(folder, **fields)
    change(after)
    names = before.namespace.differences(after.namespace)
    assert bool(names) == (before.namespace.digest != after.namespace.digest)
    return names


def test_a04_other_weights_under_the_same_path_are_another_namespace(folder: Path) -> None:
    before = Engine(folder).namespace
    write_weights(folder, 2)
    assert before.differences(Engine(folder).namespace) == ["weights"]


def test_a04_weights_without_files_are_told_apart_by_seed_or_by_name_and_revision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dummy(seed: int) -> Callable[[Engine], None]:
        def change(engine: Engine) -> None:
            engine.config.load_config = copy.copy(engine.config.load_config)
            engine.config.load_config.load_format = "dummy"
            engine.config.model_config.seed = seed

        return change

    def revision(engine: Engine) -> None:
        engine.config.model_config.revision = "abc"

    first, second = Engine(tmp_path), Engine(tmp_path)
    dummy(1)(first)
    dummy(2)(second)
    assert first.namespace.differences(second.namespace) == ["weights"]
    warnings: list[str] = []
    monkeypatch.setattr(fingerprint.logger, "warning", lambda text, *_: warnings.append(text))
    assert differences(revision, tmp_path) == ["weights"]
    assert warnings and all("by its name" in warning for warning in warnings)


def test_a04_weights_that_cannot_be_read_are_told_and_matched_with_nothing_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable = Engine(folder).namespace
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "gone")
    warnings: list[str] = []
    monkeypatch.setattr(fingerprint.logger, "warning", lambda text, *_: warnings.append(text))
    assert readable.differences(Engine(folder).namespace) == ["weights"]
    assert any("cannot be read" in warning for warning in warnings)


def test_a05_another_order_of_equal_bytes_is_another_namespace(folder: Path) -> None:
    for layout in ("NHD", "HND", "KV-first"):
        names = differences(lambda e, to=layout: e.replace(kv_cache_layout=to), folder)
        assert names == ["kv_layout"]
    assert differences(lambda e: e.replace(canonical_layout=True), folder) == ["parallel"]
    assert differences(lambda e: e.replace(replicated_layout=True), folder)


def test_a05_another_kind_of_device_is_another_namespace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Engine(folder).namespace
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    assert before.differences(Engine(folder).namespace) == ["kv_layout"]


def test_a05_layers_of_other_names_or_sizes_are_another_namespace(folder: Path) -> None:
    def rename(engine: Engine) -> None:
        engine.kv_cache.kv_cache_groups[0].layer_names[:] = ["full.1", "full.0"]

    def reshape(engine: Engine) -> None:
        group = engine.kv_cache.kv_cache_groups[0]
        group.kv_cache_spec = dataclasses.replace(
            group.kv_cache_spec, num_kv_heads=2, head_size=8, head_size_v=8
        )

    assert differences(rename, folder) == ["kv_groups"]
    assert differences(reshape, folder) == ["kv_groups"]
    assert "kv_groups" in Engine(folder).namespace.differences(
        Engine(folder, is_hybrid=True).namespace
    )


def dtype(to: torch.dtype) -> Callable[[Engine], None]:
    """The effective dtype behind a `kv_cache_dtype` of "auto"."""

    def change(engine: Engine) -> None:
        engine.config.model_config.dtype = to
        group = engine.kv_cache.kv_cache_groups[0]
        group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, dtype=to)

    return change


def test_a06_auto_is_told_apart_by_what_it_means(folder: Path) -> None:
    half, brain = Engine(folder), Engine(folder)
    dtype(torch.float16)(half)
    dtype(torch.bfloat16)(brain)
    assert half.config.cache_config.cache_dtype == brain.config.cache_config.cache_dtype == "auto"
    assert half.namespace.fields["block_bytes"] == brain.namespace.fields["block_bytes"]
    assert half.namespace.differences(brain.namespace) == ["kv_groups", "model_dtype"]


def test_a06_two_kinds_of_fp8_in_bytes_of_equal_size_are_told_apart(folder: Path) -> None:
    engines = []
    for name in ("fp8_e4m3", "fp8_e5m2"):
        engine = Engine(folder)
        engine.config.cache_config.cache_dtype = name
        group = engine.kv_cache.kv_cache_groups[0]
        group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, dtype=torch.uint8)
        engines.append(engine)
    assert engines[0].namespace.differences(engines[1].namespace) == ["kv_dtype"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tp_size": 2, "world_size": 2},
        {"pp_size": 2, "world_size": 2},
        {"dcp_size": 2},
        {"pcp_size": 2},
        {"world_size": 4},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a07_another_topology_is_another_namespace(folder: Path, fields: dict[str, int]) -> None:
    assert "parallel" in differences(lambda engine: engine.replace_parallel(**fields), folder)


def test_a07_an_entry_holds_the_parts_of_all_ranks(folder: Path) -> None:
    """So ranks need no names: an entry of two ranks is twice as long and of another namespace."""
    one, two = Engine(folder), Engine(folder)
    two.replace_parallel(tp_size=2, world_size=2)
    sizes = [int(AgentKVSpec(e.offloading).kv_bytes_per_chunk) for e in (one, two)]
    assert sizes[1] == 2 * sizes[0]
    assert one.namespace.differences(two.namespace) == ["block_bytes", "parallel"]


@pytest.mark.parametrize("fields", [{"rank": 1}, {"data_parallel_index": 1}])
def test_a07_ranks_and_replicas_of_one_topology_share(folder: Path, fields: dict[str, int]) -> None:
    assert differences(lambda engine: engine.replace_parallel(**fields), folder) == []


def test_chunks_of_other_lengths_are_another_namespace(folder: Path) -> None:
    names = Engine(folder).namespace.differences(
        Engine(folder, extra={"offloading": {"blocks_per_chunk": 4}}).namespace
    )
    assert names == ["block_bytes", "blocks_per_chunk"]


@pytest.fixture
def seed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The seed of vLLM's hashes is one for the process: put back afterwards."""
    yield monkeypatch
    monkeypatch.undo()
    init_none_hash(sha256)


def test_a01_another_seed_of_the_hashes_is_another_namespace(
    folder: Path, seed: pytest.MonkeyPatch
) -> None:
    seed.delenv("PYTHONHASHSEED", raising=False)
    init_none_hash(sha256)
    before = Engine(folder).namespace
    for value in ("123456789", "987654321"):
        seed.setenv("PYTHONHASHSEED", value)
        init_none_hash(sha256)
        assert before.differences(Engine(folder).namespace) == ["hash"]
        assert value not in Engine(folder).namespace.fields["hash"], "it is somebody's secret"


def test_a01_hashes_that_differ_in_each_process_are_known(
    folder: Path, seed: pytest.MonkeyPatch
) -> None:
    engine = Engine(folder)
    seed.delenv("PYTHONHASHSEED", raising=False)
    for algorithm, is_stable in (("sha256", True), ("sha256_cbor", True), ("xxhash", False)):
        engine.config.cache_config.prefix_caching_hash_algo = algorithm
        assert is_hash_stable(engine.config) is is_stable
    seed.setenv("PYTHONHASHSEED", "0")
    assert is_hash_stable(engine.config)


def test_a01_another_hash_algorithm_is_another_namespace(folder: Path) -> None:
    def change(engine: Engine) -> None:
        engine.config.cache_config.prefix_caching_hash_algo = "sha256_cbor"

    assert differences(change, folder) == ["hash"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("rope_theta", 77), ("rms_norm_eps", 0.5), ("hidden_act", "gelu"), ("sliding_window", 8)],
)
def test_what_changes_how_kv_is_computed_is_another_namespace(
    folder: Path, name: str, value: object
) -> None:
    """The same weights, read by another description of the model."""

    def change(engine: Engine) -> None:
        hf_config = copy.deepcopy(engine.config.model_config.hf_config)
        setattr(hf_config, name, value)
        engine.config.model_config.hf_config = hf_config

    assert differences(change, folder) == ["model_config"]


def test_quantization_is_another_namespace(folder: Path) -> None:
    def change(engine: Engine) -> None:
        engine.config.model_config.quantization = "fp8"

    assert differences(change, folder) == ["quantization"]


# --- media ---


def keys_of(tokens: list[int], identifier: str | None) -> list[bytes]:
    """The keys of 64 tokens whose positions 16 to 47 stand for an image."""
    init_none_hash(sha256)
    image = PlaceholderRange(offset=16, length=32)
    features = None
    if identifier is not None:
        features = [MultiModalFeatureSpec(None, "image", identifier, image)]
    request = Request(
        "r",
        tokens,
        SamplingParams(max_tokens=1),
        None,
        mm_features=features,
        block_hasher=get_request_block_hasher(16, sha256),
    )
    return list(request.block_hashes)


def with_image() -> list[int]:
    tokens = prompt(1, 64)
    tokens[16:48] = [7] * 32
    return tokens


def test_a14_images_behind_equal_placeholders_have_keys_of_their_own() -> None:
    first, second, none = (keys_of(with_image(), image) for image in ("H1", "H2", None))
    assert first[0] == second[0] == none[0], "what comes before the image is shared"
    for ours, others, plain in zip(first[1:], second[1:], none[1:], strict=True):
        assert len({ours, others, plain}) == 3
    assert keys_of(with_image(), "H1") == first


@pytest.mark.parametrize("num_digits", [4, 8, 16])
def test_a15_images_are_told_apart_by_their_whole_identifier(num_digits: int) -> None:
    tail = "0123456789abcdef"[-num_digits:]
    head = "f" * (32 - num_digits)
    first, second = keys_of(with_image(), head + tail), keys_of(with_image(), "0" + head[1:] + tail)
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])


def test_a15_twenty_thousand_images_do_not_collide() -> None:
    rng = random.Random(15)
    tokens = with_image()[:32]
    keys = {keys_of(tokens, rng.randbytes(16).hex())[1] for _ in range(20_000)}
    assert len(keys) == 20_000
    assert {len(key) for key in keys} == {32}, "256 bits each"
