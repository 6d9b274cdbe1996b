#!/usr/bin/env bash
# agentkv against stock vLLM and vLLM's own offloading on a box with 8 GPUs, with a 70B model.
#
# NOT RUN by us: there was no GPU where this was written. The same command is tested on the CPU
# build of vLLM; sizes below are computed for 8 x 80 GB of GPU memory and 512 GiB of DRAM, not tried.
#
# What: one engine over all 8 GPUs, 64 agents with contexts up to 10,000 tokens; live KV twice and
# four times the pool, DRAM as large as the pool and four times. With TRACE=FILE sessions of an
# agentkv-trace-v1 file instead of the shipped recording.
# Usage: bash examples/bench/eight_gpus.sh MODEL_FOLDER [OUTPUT_FOLDER]
# MODEL_FOLDER: a checkpoint on disk with config.json and tokenizer.json, such as Llama-3.3-70B.
set -euo pipefail

model=${1:?"usage: bash examples/bench/eight_gpus.sh MODEL_FOLDER [OUTPUT_FOLDER]"}
output=${2:-bench-eight-gpus}
mkdir -p "$output"
trace=()
if [ -n "${TRACE:-}" ]; then
  trace=(--trace "$TRACE")
fi

agentkv bench replay \
  --model "$model" "${trace[@]}" \
  --systems stock,native,agentkv,infinite \
  --agents 64 --sessions 128 --seeds "${SEEDS:-5}" \
  --max-context 10000 --answer-tokens 128 --max-running 64 --max-wait 30 \
  --oversubscription 2,4 --dram 1,4 \
  --one-by-one \
  --server-arg=--tensor-parallel-size=8 \
  --server-arg=--gpu-memory-utilization=0.92 \
  --server-arg=--max-num-batched-tokens=8192 \
  --json "$output/replay.json" --plots "$output" --html "$output/replay.html"
