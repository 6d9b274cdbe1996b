#!/usr/bin/env bash
# Everything that is checked without running the code, and that the wheel works when installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin="${AGENTKV_VENV:-.venv}/bin"

"$bin/ruff" format --check --quiet . || { "$bin/ruff" format --diff . ; exit 1; }
"$bin/ruff" check --quiet .
"$bin/mypy"
"$bin/python" ci/size_budget.py
"$bin/python" ci/readme_tables.py --check
lint="$("$bin/lint-imports" --no-cache)" || { echo "$lint"; exit 1; }
bash ci/wheel_smoke.sh
echo "check: all good"
