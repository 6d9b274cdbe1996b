#!/usr/bin/env bash
# Every fault of the tiers in full, on two cores, in 10 to 15 minutes if nothing else runs. What
# ci/test.sh runs a short share of:
#   1,000 kill -9 while the disk is written, and 100 with torn files (tests/tiers/test_disk_crash.py);
#   1,000,000 blocks loaded from the stores of a disk and a Redis that are damaged, killed, frozen,
#     full, deleted and restarted meanwhile, every byte compared (tests/tiers/test_fault_mix.py);
#   50,000 blocks through the whole chain, from a scheduler to the tiers and back, under such faults
#     (tests/connectors/test_tier_mix.py). It is the slow one, hence its smaller share.
# What became of the blocks is told as each test ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash ci/setup.sh
export AGENTKV_KILLS="${AGENTKV_KILLS:-1000}" AGENTKV_MIX_BLOCKS="${AGENTKV_MIX_BLOCKS:-50000}"
export AGENTKV_STORE_MIX_BLOCKS="${AGENTKV_STORE_MIX_BLOCKS:-1000000}"
export VLLM_CPU_KVCACHE_SPACE=1
# The long tests are few: who has nothing left to do takes them over.
"${AGENTKV_VENV:-.venv}/bin/python" -m pytest -rs -s --durations=8 \
    --numprocesses 2 --dist worksteal tests/tiers tests/connectors/test_tier_mix.py "$@"
