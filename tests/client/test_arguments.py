"""Command and time-out as found in the arguments of a call, JSON or decoded."""

import pytest

from agentkv.client.arguments import details_of


@pytest.mark.parametrize(
    "arguments", ['{"command": "make", "timeout_s": 9}', {"command": "make", "timeout_s": 9}]
)
def test_command_and_time_out_are_found(arguments: str | dict[str, object]) -> None:
    assert details_of("bash", arguments) == {"command": "make", "timeout_s": 9}


@pytest.mark.parametrize("arguments", [None, "", "[]", {}, {"x": object()}])
def test_without_them_there_is_nothing_to_tell(arguments: str | dict[str, object] | None) -> None:
    assert not any(details_of("search", arguments).values())


def test_text_is_taken_as_it_is() -> None:
    assert details_of("apply_patch", "*** Begin Patch")["command"] == "*** Begin Patch"
