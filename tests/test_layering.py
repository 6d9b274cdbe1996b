"""What may import what, beyond what import-linter can see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("agentkv", "connectors", "patches", "tests", "examples", "ci")
SOURCES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


def absolute_imports(source: Path) -> set[str]:
    """The first part of every absolute import in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("source", SOURCES, ids=[str(file.relative_to(ROOT)) for file in SOURCES])
def test_no_file_imports_the_mapped_folders_by_their_bare_name(source: Path) -> None:
    assert not absolute_imports(source) & {"connectors", "patches"}


def test_the_core_loads_without_vllm_or_torch() -> None:
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in SOURCES
        if file.is_relative_to(ROOT / "agentkv")
    ]
    code = (
        "import importlib, sys\n"
        "sys.modules.update(vllm=None, torch=None)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
