"""However many sessions are paused, a step looks at a few of them: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import Rig, prompt
from kit.control import tell

from agentkv.sessions import Pause, Session, SessionTracker
from agentkv.signals import Event

RigFactory = Callable[..., Rig]
NUM_PAUSED = 1500
MOST_READS, MEAN_READS = 650, 200
"""Of one step. A walk over all pauses reads something of each."""
TOOL = {"tool": "bash", "expected_wait_s": 1000.0}


class Reads:
    """How often somebody looked at a session's pause, or at what is known of a pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_reads = 0
        for owner, name in ((Session, "pause"), (Pause, "context_tokens"), (Pause, "is_given_up")):
            monkeypatch.setattr(owner, name, self._counting(vars(owner)[name]))
        get = SessionTracker.get

        def counted_get(tracker: SessionTracker, key: Any) -> Session | None:
            self.num_reads += 1
            return get(tracker, key)

        monkeypatch.setattr(SessionTracker, "get", counted_get)

    def take(self) -> int:
        num_reads, self.num_reads = self.num_reads, 0
        return num_reads

    def _counting(self, slot: Any) -> property:
        def read(instance: object) -> Any:
            self.num_reads += 1
            return slot.__get__(instance)

        return property(read, slot.__set__)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def fill(rig: Rig) -> None:
    """So many sessions have had a turn; a good third of them lie in DRAM alone."""
    for first in range(0, NUM_PAUSED, 50):
        for number in range(first, first + 50):
            session = f"s{number}"
            rig.add(f"r{number}", prompt(number, 20), session=session, tag=TOOL, max_tokens=1)
        rig.settle()
    book = rig.controller.pauses
    assert len(book.kept()) > 650 < len(book.away())


def busy_steps(rig: Rig, reads: Reads, num_steps: int = 120) -> list[int]:
    """What each step reads while one turn decodes, others arrive, and a client speaks."""
    rig.step_s = 0.02
    rig.add("long", prompt(10**6, 20), max_tokens=num_steps, tag={"last_turn": True})
    rig.step(2)
    counts = []
    for step in range(num_steps):
        if step % 20 == 5:
            rig.add(f"turn{step}", prompt(10**6 + step, 40), session=f"n{step}", tag=TOOL)
        if step % 20 == 15:
            tell(rig, Event(event="heartbeat", session_id=f"s{step}"))
        reads.take()
        rig.step()
        counts.append(reads.take())
    return counts


@pytest.mark.parametrize(
    ("dram_blocks", "has_ssd", "later_s"),
    [
        (4 * NUM_PAUSED, False, 0.0),
        (4 * NUM_PAUSED, False, 990.0),  # All leases are over, and all will be back soon.
        (1200, False, 0.0),
        (1200, True, 0.0),
    ],
)
def test_a_step_looks_at_few_of_many_pauses(
    make_rig: RigFactory,
    tmp_path: Path,
    reads: Reads,
    dram_blocks: int,
    has_ssd: bool,
    later_s: float,
) -> None:
    extra: dict[str, Any] = {"min_load_tokens": 0, "park_after_s": 10_000}
    if has_ssd:
        extra["ssd"] = {"path": str(tmp_path), "size_bytes": "64MiB", "min_free_bytes": "1MiB"}
    rig = make_rig(
        pool_blocks=800,
        dram_blocks=dram_blocks,
        max_num_seqs=64,
        policy="expected_cost",
        extra=extra,
    )
    fill(rig)
    rig.clock.advance(later_s)
    num_leases = len(rig.controller.pauses._leases)
    counts = busy_steps(rig, reads)
    assert max(counts) < MOST_READS
    assert sum(counts) / len(counts) < MEAN_READS
    if later_s:
        num_ended = num_leases - len(rig.controller.pauses._leases)
        assert num_ended > 3 * len(counts), "a few with each step, not once in a while"


def test_what_dram_evicted_is_settled_a_few_with_each_step(make_rig: RigFactory) -> None:
    rig = make_rig()
    asked: list[int] = []
    rig.controller.settle_evicted = asked.append
    rig.run("r", prompt(1, 20))
    assert len(asked) >= 4 and set(asked) == {4}
