"""What the tests of the tiers share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def our_loggers_speak() -> None:
    """A server in a test before may have silenced all that set no level of their own."""
    logging.getLogger("agentkv").setLevel(logging.INFO)
