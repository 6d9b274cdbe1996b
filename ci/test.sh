#!/usr/bin/env bash
# The one command for contributors and CI: sets up the environment, checks, runs every test.
# Arguments go to pytest: `bash ci/test.sh -m "not e2e"` leaves out what starts a vLLM engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash ci/setup.sh
bash ci/check.sh

# Real servers take part in the tests; Debian's packages, where they may be installed.
missing=()
for program in redis-server fio chromium; do
    command -v "$program" >/dev/null || missing+=("$program")
done
if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
fi

export HF_HUB_OFFLINE=1              # Every model used here is made here.
export VLLM_CPU_KVCACHE_SPACE=1      # GiB; vLLM would take most of the memory by itself.
export VLLM_NO_USAGE_STATS=1
export VLLM_RPC_BASE_PATH=/tmp       # Paths of sockets must be short, whatever TMPDIR is.
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

# A test that was skipped for want of a part proves nothing.
run_tests() {
    "${AGENTKV_VENV:-.venv}/bin/python" -m pytest -rs "$@" 2>&1 | tee "$log"
    if tail -n 1 "$log" | grep -q skipped; then
        echo "test: tests were skipped, see above" >&2
        exit 1
    fi
}

if [ "$#" -gt 0 ]; then
    run_tests "$@"
else
    run_tests -m "not e2e" --numprocesses 2 --dist loadfile
    run_tests -m e2e  # One engine at a time: it takes the whole machine.
fi
