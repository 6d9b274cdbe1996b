"""What agentkv costs where it cannot help: throughput of vLLM with it over vLLM without.

What: two engines with the same model, one with the plugin, answer the same prompts in turn, so that
whatever else the machine does hits both alike. No prompt returns and nothing is short of memory:
all that the plugin does here, storing every block to DRAM included, is cost.
Usage: python examples/bench/overhead.py [--model MODEL | --tiny] [--runs 10] [--prompts 32]
Prints every run and the ratio of the medians. Without --model it makes a small one with random
weights, with --tiny one whose steps take 2 ms: there the connector's own work shows most.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

# Before vLLM is imported. The CPU platform only: GiB for the KV pool.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams

from agentkv.demo.checkpoint import ModelShape, write_checkpoint

TINY = ModelShape()
SMALL = ModelShape(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    head_dim=64,
)
PROMPT_TOKENS = 512
ANSWER_TOKENS = 64
CONCURRENCY = 8
REST_S = 1.2  # vLLM's processes spin for a second after their last message and slow others down


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or random_model(Path(folder), TINY if args.tiny else SMALL)
        engines = {"off": start(model, None), "on": start(model, {"dram": {"size_bytes": "1GiB"}})}
        rates = measure(engines, num_runs=args.runs, num_prompts=args.prompts)
    for name, values in rates.items():
        print(f"{name:>4}: median {statistics.median(values):8.1f} tokens/s of {len(values)} runs")
    on, off = (statistics.median(rates[name]) for name in ("on", "off"))
    pairs = statistics.median(a / b for a, b in zip(rates["on"], rates["off"], strict=True))
    print(f"with agentkv: {on / off:.1%} of the throughput without; median of pairs {pairs:.1%}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="any model that vLLM serves (default: a small random one)")
    parser.add_argument("--tiny", action="store_true", help="make a tiny model, not a small one")
    parser.add_argument("--runs", type=int, default=10, help="runs of each engine")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a run")
    return parser.parse_args()


def random_model(folder: Path, shape: ModelShape) -> str:
    write_checkpoint(folder, ["run the tests again"] * 10, seed=0, shape=shape)
    return str(folder)


def start(model: str, settings: dict[str, Any] | None) -> LLM:
    transfer = None
    if settings is not None:
        transfer = {
            "kv_connector": "agentkv",
            "kv_role": "kv_both",
            "kv_connector_extra_config": settings,
        }
    return LLM(
        model,
        enforce_eager=True,
        gpu_memory_utilization=0.4,
        kv_transfer_config=transfer,
        max_model_len=PROMPT_TOKENS + ANSWER_TOKENS,
        max_num_seqs=CONCURRENCY,
    )


def measure(engines: dict[str, LLM], *, num_runs: int, num_prompts: int) -> dict[str, list[float]]:
    """Answer tokens per second of every run, the engines taking turns in who goes first."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for run in range(-1, num_runs):  # One more, not counted, to warm up.
        order = sorted(engines, reverse=bool(run % 2))
        for name in order:
            time.sleep(REST_S)
            rate = answer(engines[name], seed=run, num_prompts=num_prompts)
            if run >= 0:
                rates[name].append(rate)
        if run >= 0:
            print(f"run {run + 1}: " + ", ".join(f"{n} {r[-1]:.1f}" for n, r in rates.items()))
    return rates


def answer(engine: LLM, *, seed: int, num_prompts: int) -> float:
    """Has prompts answered that the engine has not seen; returns answer tokens per second."""
    rng = random.Random(seed)
    prompts = [
        {"prompt_token_ids": [rng.randrange(10, 250) for _ in range(PROMPT_TOKENS)]}
        for _ in range(num_prompts)
    ]
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    started_s = time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started_s
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


if __name__ == "__main__":
    main()
