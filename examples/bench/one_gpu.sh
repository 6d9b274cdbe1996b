#!/usr/bin/env bash
# agentkv against stock vLLM and vLLM's own offloading on one GPU, with a model of the 8B class.
#
# NOT RUN by us: there was no GPU where this was written. The same command is tested on the CPU
# build of vLLM; sizes below are computed for 80 GB of GPU memory, not tried.
#
# What: 16 agents with contexts up to 12,000 tokens; live KV twice and four times the pool, DRAM as
# large as the pool and four times; the waits as recorded, cut at 30 s. About five hours; give
# SEEDS=1 for a first look.
# Usage: bash examples/bench/one_gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]
# MODEL_FOLDER: a checkpoint on disk with config.json and tokenizer.json, such as Llama-3.1-8B.
set -euo pipefail

model=${1:?"usage: bash examples/bench/one_gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]"}
output=${2:-bench-one-gpu}
mkdir -p "$output"

agentkv bench replay \
  --model "$model" \
  --systems stock,native,agentkv,infinite \
  --agents 16 --sessions 32 --seeds "${SEEDS:-5}" \
  --max-context 12000 --answer-tokens 128 --max-running 16 --max-wait 30 \
  --oversubscription 2,4 --dram 1,4 \
  --one-by-one \
  --server-arg=--gpu-memory-utilization=0.92 \
  --server-arg=--max-num-batched-tokens=8192 \
  --json "$output/replay.json" --plots "$output" --html "$output/replay.html"
