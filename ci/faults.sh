#!/usr/bin/env bash
# Every fault of the tiers in full, for hours: 1,000 kill -9 while the disk is written, and a
# million blocks brought up from a disk and a Redis that are damaged, killed, full and reset meanwhile.
# ci/test.sh runs a short mix of the same tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash ci/setup.sh
export AGENTKV_KILLS="${AGENTKV_KILLS:-1000}" AGENTKV_MIX_BLOCKS="${AGENTKV_MIX_BLOCKS:-1000000}"
export VLLM_CPU_KVCACHE_SPACE=1
"${AGENTKV_VENV:-.venv}/bin/python" -m pytest -rs -s tests/tiers tests/connectors/test_tier_mix.py "$@"
