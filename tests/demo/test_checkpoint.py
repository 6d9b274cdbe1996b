"""The checkpoint: what transformers reads back, and that chance follows the seed alone."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentkv.demo.checkpoint import ModelShape, random_weights, render_prompt, write_checkpoint

TEXTS = ["run the tests", "pytest -q tests/test_agent.py", "grep -rn 'def main' src"] * 20
SMALL = ModelShape(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
TALK = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "run the tests\nnow"},
    {"role": "assistant", "content": "pytest -q"},
    {"role": "user", "content": "1 failed"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, TEXTS, seed=0, shape=SMALL)
    return folder


def test_transformers_reads_the_config_that_was_written(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.vocab_size, config.num_key_value_heads, config.head_dim) == (400, 2, 32)
    assert str(config.dtype).endswith("float32")


def test_transformers_loads_every_weight_and_misses_none(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.num_parameters() == sum(w.size for _, w in random_weights(SMALL, seed=0))


def test_the_chat_template_renders_what_the_demo_counts_with(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rendered = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    assert rendered == render_prompt(TALK)


def test_the_prompt_of_a_turn_is_a_token_prefix_of_the_next_turns_prompt(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(messages: list[dict[str, str]]) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]

    first, second = ids(TALK[:2]), ids(TALK)
    assert second[: len(first)] == first and len(second) > len(first)


def test_the_same_seed_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TEXTS, seed=0, shape=SMALL)
    for file in sorted(folder.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_another_seed_gives_other_weights(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TEXTS, seed=1, shape=SMALL)
    name = "model.layers.0.self_attn.k_proj.weight"
    one, other = (load_file(path / "model.safetensors")[name] for path in (folder, tmp_path))
    assert not np.array_equal(one, other)


def test_weights_are_random_and_as_wide_as_the_shape_says(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    key = weights["model.layers.1.self_attn.k_proj.weight"]
    assert key.std() == pytest.approx(SMALL.initializer_range, rel=0.1)
    assert len({array.tobytes() for array in weights.values() if array.ndim == 2}) == 16


def test_every_text_survives_the_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "naïve — tab\there, 数字 and $(echo 'quotes')\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_kv_bytes_per_token_count_keys_and_values_of_all_layers() -> None:
    assert ModelShape().kv_bytes_per_token == 2 * 4 * 2 * 32 * 4
