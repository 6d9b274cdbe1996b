"""The `agentkv` command itself."""

import subprocess
import sys

import pytest

from agentkv import __version__
from agentkv.cli.main import main


def test_version_names_agentkv_and_the_installed_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentkv", "version"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"agentkv {__version__}"
    assert second.startswith("vLLM 0.32")


def test_help_lists_the_subcommands_without_loading_vllm() -> None:
    code = (
        "import sys; from agentkv.cli.main import main; sys.argv = ['agentkv', '--help']\n"
        "try: main()\n"
        "finally: assert not {'vllm', 'torch'} & set(sys.modules), 'loaded'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("serve", "demo", "version"):
        assert name in done.stdout
