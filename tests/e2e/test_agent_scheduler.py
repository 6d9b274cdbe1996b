"""Our scheduler under a real engine: the tokens are those of a stock vLLM, in async mode too."""

import pytest

from .checks import assert_talks_alike
from .conftest import StartEngine
from .engine import Engine


@pytest.mark.parametrize("name", ["AgentScheduler", "AsyncAgentScheduler"])
def test_turns_in_another_order_have_the_same_tokens(
    base: Engine, start: StartEngine, name: str
) -> None:
    options = {"scheduler_cls": f"agentkv.connectors.scheduler.{name}"}
    if name.startswith("Async"):
        options["async_scheduling"] = True
    engine = start({}, num_blocks=40, **options)
    assert_talks_alike(base, engine, num_sessions=5, num_turns=3, concurrency=5)
    assert engine.ledger("resume")
