#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment and uses it from an empty directory, where
# nothing of the checkout can be imported by accident. Dependencies come from the main environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin="$(cd "${AGENTKV_VENV:-.venv}/bin" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# A copy, so that no build folder stays behind in the checkout and gets into the next wheel.
mkdir "$work/source" "$work/empty"
cp -r pyproject.toml README.md LICENSE agentkv connectors patches "$work/source"
"$bin/python" -m build --wheel --no-isolation --outdir "$work" "$work/source" >"$work/build.log" 2>&1 ||
    { cat "$work/build.log"; exit 1; }

"$bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
    "$work"/*.whl
"$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/deps.pth"

cd "$work/empty"
"$work/venv/bin/agentkv" version
"$work/venv/bin/python" - "$work/venv" <<'PYTHON'
import sys
from importlib import metadata, resources

import agentkv
from agentkv.connectors import connector, probe
from agentkv.patches import problems, register

assert agentkv.__file__.startswith(sys.argv[1]), agentkv.__file__
assert connector.__file__.startswith(sys.argv[1]), connector.__file__
(plugin,) = metadata.entry_points(group="vllm.general_plugins", name="agentkv")
assert plugin.load() is register
register()
problems.raise_if_any()
probe.check_vllm()
assert resources.files("agentkv").joinpath("py.typed").is_file()
assert list(resources.files("agentkv.demo").joinpath("data").iterdir()), "the demo's data is missing"
print("wheel: installed, registered and fitting")
PYTHON
