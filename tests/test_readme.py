"""The README: its tables are those of the code, and the files it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMED_FILES = sorted(
    set(re.findall(r"`?((?:agentkv|connectors|patches|ci|examples)/[\w/]+\.\w+)", README))
)


def test_the_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "ci/readme_tables.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMED_FILES)
def test_a_file_that_is_named_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_the_list_of_named_files_was_found() -> None:
    assert len(NAMED_FILES) > 10
