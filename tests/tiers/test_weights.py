"""The digest of a model's weights: other weights under the same names are another model (A04)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentkv.tiers.weights import weights_digest

Tensors = dict[str, np.ndarray]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tensors_of(seed: int) -> Tensors:
    """Of several sizes: smaller than a sample, and much larger."""
    rng = np.random.default_rng(seed)
    shapes = {"norm": (16,), "proj": (64, 48), "embed": (512, 128), "head": (100, 100)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write(folder: Path, tensors: Tensors, *, num_files: int = 2) -> Path:
    """A checkpoint in the given number of safetensors files."""
    folder.mkdir(exist_ok=True)
    names = sorted(tensors)
    for number in range(num_files):
        part = {name: tensors[name] for name in names[number::num_files]}
        save_file(part, folder / SHARDS[number], metadata={"format": "pt"})
    return folder


def digest(path: Path) -> str:
    found = weights_digest(path)
    assert found is not None
    return found


def test_a_copy_elsewhere_has_the_same_digest(tmp_path: Path) -> None:
    first = write(tmp_path / "a", tensors_of(1))
    second = tmp_path / "b"
    shutil.copytree(first, second)
    (second / "README.md").write_text("no weights")
    (second / "config.json").write_text("{}")
    assert digest(first) == digest(second)
    assert len(digest(first)) == 32 and int(digest(first), 16)


def test_a04_other_weights_under_the_same_path_are_others(tmp_path: Path) -> None:
    before = digest(write(tmp_path / "model", tensors_of(1)))
    sizes = [(tmp_path / "model" / name).stat().st_size for name in SHARDS]
    after = digest(write(tmp_path / "model", tensors_of(2)))
    assert [(tmp_path / "model" / name).stat().st_size for name in SHARDS] == sizes
    assert before != after


@pytest.mark.parametrize("name", ["norm", "proj", "embed", "head"])
@pytest.mark.parametrize("scale", [1.0001, -1.0, 0.0])
def test_one_tensor_that_was_trained_changes_it(tmp_path: Path, name: str, scale: float) -> None:
    tensors = tensors_of(1)
    before = digest(write(tmp_path / "a", tensors))
    tensors[name] = tensors[name] * np.float32(scale)
    assert digest(write(tmp_path / "b", tensors)) != before


@pytest.mark.parametrize("where", [0, -1, "middle"])
def test_the_ends_and_the_middle_of_every_tensor_are_read(tmp_path: Path, where: int | str) -> None:
    tensors = tensors_of(1)
    before = digest(write(tmp_path / "a", tensors))
    flat = tensors["embed"].reshape(-1)
    flat[flat.size // 2 if where == "middle" else where] += 1  # type: ignore[index]
    assert digest(write(tmp_path / "b", tensors)) != before


def test_what_lies_between_the_samples_is_not_read(tmp_path: Path) -> None:
    """The price of a quick start, which the module's text names: a value changed by hand."""
    tensors = tensors_of(1)
    before = digest(write(tmp_path / "a", tensors))
    tensors["embed"].reshape(-1)[5000] += 1
    assert digest(write(tmp_path / "b", tensors)) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.update(extra=tensors["norm"]),
        lambda tensors: tensors.pop("norm"),
        lambda tensors: tensors.update(renamed=tensors.pop("norm")),
        lambda tensors: tensors.update(proj=tensors["proj"].reshape(48, 64)),
        lambda tensors: tensors.update(proj=tensors["proj"].view(np.int32)),
    ],
    ids=["more", "fewer", "renamed", "reshaped", "retyped"],
)
def test_descriptions_of_tensors_count(tmp_path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = tensors_of(1)
    before = digest(write(tmp_path / "a", tensors))
    change(tensors)
    assert digest(write(tmp_path / "b", tensors)) != before


def test_a_missing_shard_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", tensors_of(1))
    before = digest(folder)
    (folder / SHARDS[1]).unlink()
    assert digest(folder) != before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.gguf"])
def test_files_of_other_kinds_are_sampled_all_over(tmp_path: Path, name: str) -> None:
    content = bytearray(np.random.default_rng(1).bytes(3 << 20))
    file = tmp_path / name
    file.write_bytes(content)
    before = digest(tmp_path)
    assert digest(file) == before, "a file is named as well as its folder"
    content[::1000] = bytes(x ^ 1 for x in content[::1000])
    file.write_bytes(content)
    assert digest(tmp_path) != before


def test_files_of_other_kinds_beside_safetensors_are_not_the_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", tensors_of(1))
    before = digest(folder)
    (folder / "training_args.bin").write_bytes(b"what a trainer leaves")
    assert digest(folder) == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b"{not json",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (31).to_bytes(8, "little") + b'{"a": {"data_offsets": "apple"}',
    ],
)
def test_a_file_that_only_has_the_name_is_taken_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    before = digest(tmp_path)
    file.write_bytes(content + b"more")
    assert digest(tmp_path) != before


def test_a_folder_without_weights_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path) is None
    assert weights_digest(tmp_path / "missing") is None


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match="No such file"):
        weights_digest(tmp_path)
