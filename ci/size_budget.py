"""Keeps files, classes and functions short.

What: counts lines by syntax tree; prints what is over its budget and exits with 1.
Why: size is what makes code hard to read first, and a budget that nobody measures only grows.
Where: called by ci/check.sh.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("agentkv", "connectors", "patches", "examples", "ci", "tests")
MAX_FILE_LINES = 400
MAX_CLASS_LINES = 250
MAX_FUNCTION_LINES = 40


def main() -> int:
    """Check all folders; returns the exit status."""
    root = Path(__file__).parent.parent
    over = [
        f"{source.relative_to(root)}:{line}"
        for folder in FOLDERS
        for source in sorted((root / folder).rglob("*.py"))
        for line in over_budget(source)
    ]
    for line in over:
        print(line)
    return 1 if over else 0


def over_budget(source: Path) -> Iterator[str]:
    """What is too long in one file, as `line: what`."""
    text = source.read_text(encoding="utf-8")
    if (num_lines := len(text.splitlines())) > MAX_FILE_LINES:
        yield f"1: file of {num_lines} lines, {MAX_FILE_LINES} allowed"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            allowed = MAX_CLASS_LINES
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            allowed = MAX_FUNCTION_LINES
        else:
            continue
        if (num_lines := code_lines(node)) > allowed:
            yield f"{node.lineno}: {node.name} has {num_lines} lines, {allowed} allowed"


def code_lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; neither docstring nor signature counts, for these are there to be read."""
    body = node.body if ast.get_docstring(node) is None else node.body[1:]
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


if __name__ == "__main__":
    sys.exit(main())
