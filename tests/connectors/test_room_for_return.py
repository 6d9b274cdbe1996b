"""Room for KV that comes back: never what requests want, and only from whoever returns later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kit.pool import FULL, Pool

from agentkv import metrics
from agentkv.connectors.arrived import ArrivedTurns
from agentkv.connectors.cache_policy import AgentKVCachePolicy
from agentkv.connectors.exclusive import Exclusive
from agentkv.connectors.guard import Faults
from agentkv.connectors.kept_prefix import KeptPrefixes
from agentkv.connectors.layout import Layout
from agentkv.connectors.room import Room
from agentkv.events import TurnTag
from agentkv.sessions import Session, SessionKey
from tests.test_controller import World

LAYOUT = Layout((FULL,), tokens_per_hash=16)


class Rooms(World):
    """A pool of 20 blocks whose sessions have four cached blocks each."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"policy": "always_swap", **fields})
        self.pool = Pool(20)
        self.requests: dict[str, Any] = {}
        dram = AgentKVCachePolicy(cache_capacity=50)
        arrived = ArrivedTurns(dram, LAYOUT, self.recorder, is_protecting=True)
        deps = self.controller._deps
        self.arrived = arrived
        manager = SimpleNamespace(dram=dram)  # Asked for nothing else while DRAM lacks nothing.
        kept, faults = KeptPrefixes(1000), Faults(self.recorder)
        exclusive = Exclusive(
            self.controller, deps, manager, LAYOUT, self.requests, kept, faults, False
        )
        self.room = Room(self.controller, deps, arrived, self.requests, LAYOUT, exclusive)

    def paused(self, name: str, seed: int, wait_s: float, num_blocks: int = 4) -> Session:
        """A session whose turn just ended and that returns after about so long."""
        self.pool.cache(seed, num_blocks)
        hashes = self.pool.chains[seed]
        controller = self.controller
        controller.turn_arrived(
            name,
            name=name,
            scope="",
            hashes=hashes,
            prompt_tokens=num_blocks * 16,
            tag=TurnTag(tool="bash", expected_wait_s=wait_s),
        )
        controller.turn_scheduled(name, gpu_hit_tokens=0, dram_hit_tokens=0)
        controller.turn_finished(name, hashes=hashes, num_tokens=num_blocks * 16)
        session = controller.sessions.get(SessionKey("", name))
        assert session is not None
        return session

    def waits(self, num_blocks: int) -> None:
        """A request that lacks so many blocks has arrived, the last one for what it will decode."""
        request = self.pool.request(90, num_blocks - 1)
        self.requests[request.request_id] = request
        self.arrived.add(request, self.pool.order)

    def for_return(self, session: Session, num_blocks: int, in_s: float = 0.0) -> int:
        after_s = self.clock.monotonic_s() + in_s
        return self.room.for_return(
            self.pool.order, session, num_blocks=num_blocks, after_s=after_s
        )

    def given_up(self) -> set[str]:
        return {session.key.name for session, _ in self.controller.pauses.away()}


def test_empty_blocks_are_taken_first_and_nobody_gives_any() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    rooms.paused("later", 2, 900)
    assert rooms.for_return(back, 12) == 12 and rooms.given_up() == set()


def test_who_returns_later_makes_room_the_latest_first_and_no_more_than_needed() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    rooms.paused("later", 2, 400)
    rooms.paused("latest", 3, 900)
    assert rooms.for_return(back, 10, in_s=10) == 10
    assert rooms.given_up() == {"latest"}
    assert rooms.pool.order.count_front(20) == (8, 12)
    counters = rooms.recorder.take().counters
    assert counters[metrics.GIVEN_UP_BLOCKS, ("swap",)] == 4
    assert rooms.for_return(back, 14, in_s=10) == 14
    assert rooms.given_up() == {"later", "latest"}


def test_who_returns_sooner_keeps_its_blocks_and_only_a_part_comes_back() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 400)
    rooms.paused("soon", 2, 5)
    assert rooms.for_return(back, 20, in_s=400) == 12
    assert rooms.given_up() == set()


def test_nobody_makes_room_who_would_have_to_compute_for_it() -> None:
    rooms = Rooms(missing=1)
    back = rooms.paused("back", 1, 10)
    rooms.paused("later", 2, 900)
    assert rooms.for_return(back, 14, in_s=10) == 12
    assert rooms.given_up() == set()


def test_a_session_never_makes_room_for_itself() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 900)
    assert rooms.for_return(back, 20) == 16
    assert rooms.given_up() == set()


def test_a_hold_that_makes_room_becomes_a_swap_and_says_why() -> None:
    rooms = Rooms(policy="always_hold")
    back = rooms.paused("back", 1, 10)
    rooms.paused("later", 2, 900)
    assert rooms.for_return(back, 14, in_s=10) == 14
    assert "returns sooner" in rooms.records("redecide")[-1]["reason"]


@pytest.mark.parametrize(("num_wanted", "num_left"), [(5, 7), (12, 0), (19, 0)])
def test_what_requests_want_is_left_alone(num_wanted: int, num_left: int) -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    rooms.paused("soon", 2, 5)
    rooms.waits(num_wanted)
    assert max(0, rooms.for_return(back, 12, in_s=10)) == num_left


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_no_blocks_need_no_room(num_blocks: int) -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    rooms.paused("later", 2, 900)
    assert rooms.for_return(back, num_blocks) == 0 and rooms.given_up() == set()


def test_blocks_in_use_are_no_room() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    rooms.pool.pool.get_new_blocks(10)
    assert rooms.for_return(back, 12, in_s=10) == 6


# --- idle room ---


@pytest.mark.parametrize(
    ("num_reserved", "num_wanted", "most", "num_left"),
    [(0, 0, 99, 12), (5, 0, 99, 7), (5, 0, 3, 3), (0, 4, 99, 8), (5, 4, 99, 3), (9, 9, 99, 0)],
)
def test_idle_room_is_what_nobody_needs_beyond_the_reserve(
    num_reserved: int, num_wanted: int, most: int, num_left: int
) -> None:
    rooms = Rooms()
    rooms.paused("a", 1, 900)
    rooms.paused("b", 2, 900)
    if num_wanted:
        rooms.waits(num_wanted)
    assert rooms.room.worthless_beyond(rooms.pool.order, num_reserved, most) == num_left


def test_what_a_live_session_gave_up_is_no_idle_room_what_an_ended_one_left_is() -> None:
    rooms = Rooms()
    back = rooms.paused("back", 1, 10)
    later = rooms.paused("later", 2, 900)
    rooms.for_return(back, 14, in_s=10)
    assert rooms.given_up() == {"later"}
    assert rooms.room.worthless_beyond(rooms.pool.order, 0, 99) == 12
    rooms.controller.end(later)
    rooms.pool.order.discard(rooms.controller.sessions.take_dead())
    assert rooms.room.worthless_beyond(rooms.pool.order, 0, 99) == 16
