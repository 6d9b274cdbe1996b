"""What the rough parser makes of the commands that coding agents run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.predict import commands
from agentkv.predict.commands import classify_command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest -q tests/", commands.TEST),
        ("cd /repo && python -m pytest -x 2>&1 | tail -20", commands.TEST),
        ("./venv/bin/pytest", commands.TEST),
        ("python3.11 -m unittest discover", commands.TEST),
        ("python tests/runtests.py admin", commands.TEST),
        ("python manage.py test", commands.TEST),
        ("uv run pytest", commands.TEST),
        ("npm test", commands.TEST),
        ("cargo test --all", commands.TEST),
        ("CI=1 timeout 60 go test ./...", commands.TEST),
        ("pip install -e . && pytest", commands.TEST),
        ("pip install numpy", commands.INSTALL),
        ("sudo apt-get -y install jq", commands.INSTALL),
        ("python -m pip install -r requirements.txt", commands.INSTALL),
        ("npm ci", commands.INSTALL),
        ("uv sync", commands.INSTALL),
        ("make -j4", commands.BUILD),
        ("cargo build --release", commands.BUILD),
        ("npm run build", commands.BUILD),
        ("python -c 'import os; print(os.name)'", commands.PYTHON),
        ("python script.py", commands.PYTHON),
        ("git status && git diff", commands.GIT),
        ("git clone https://example.org/x.git", commands.NETWORK),
        ("curl -s localhost:8000/health", commands.NETWORK),
        ("node server.js", commands.PROGRAM),
        ("./run.sh", commands.PROGRAM),
        ("grep -rn pytest src | head", commands.SEARCH),
        ("find . -name '*.py' | xargs grep foo", commands.SEARCH),
        ("sed -n 1,40p a.py", commands.VIEW),
        ("ls -la", commands.VIEW),
        ("cat > a.py <<'EOF'\nimport x\nmake y\nEOF", commands.VIEW),
        ("sleep 5; curl localhost", commands.SLEEP),
        ("cd /repo", commands.OTHER),
        ("", commands.OTHER),
        ("&& ;; |", commands.OTHER),
    ],
)
def test_the_command_class(command: str, expected: str) -> None:
    assert classify_command(command).name == expected


@pytest.mark.parametrize(
    ("command", "sleep_s"),
    [
        ("sleep 30", 30.0),
        ("sleep 0.5 && curl localhost && sleep 2s", 2.5),
        ("sleep 2m", 120.0),
        ("sleep 5 & make", 0.0),
        ("sleep infinity", 0.0),
        ("sleep 5x", 0.0),
        ("pytest", 0.0),
    ],
)
def test_the_seconds_of_foreground_sleeps(command: str, sleep_s: float) -> None:
    assert classify_command(command).sleep_s == sleep_s


@pytest.mark.parametrize(
    ("command", "head"),
    [
        ("cd /repo && python -m pytest -x 2>&1 | tail -20", "python -m pytest"),
        ("/usr/bin/python3 -c 'print(1)'", "python3 -c"),
        ("python script.py --fast", "python"),
        ("CI=1 timeout 60 go test ./...", "go test"),
        ("git --no-pager log -3 | head", "git log"),
        ("pip install -e . && echo done", "pip install"),
        ("ls -la", "ls"),
        ("make", "make"),
        ("", ""),
        ("&& ;;", ""),
    ],
)
def test_the_head_is_the_program_that_the_class_rests_on(command: str, head: str) -> None:
    assert classify_command(command).head == head


@given(st.text())
def test_any_text_has_a_class(command: str) -> None:
    found = classify_command(command)

    assert found.name in commands._BY_LENGTH
    assert found.sleep_s >= 0
