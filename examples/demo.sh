#!/usr/bin/env bash
# Sets up an environment with the CPU build of vLLM and runs the demo. Needs no GPU and no model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash ci/setup.sh
exec "${AGENTKV_VENV:-.venv}/bin/agentkv" demo "$@"
