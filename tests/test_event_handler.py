"""Signals about sessions: each is applied once, in order, to the right session or to none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.event_handler import EventHandler
from agentkv.events import EMPTY_TAG, TurnTag
from agentkv.sessions import Pause, Session, SessionKey, SessionState
from agentkv.signals import Event, EventResult, ScopedEvent, Status
from tests.test_controller import BLOCK, World
from tests.test_prefix_tree import chain


class Told(World):
    """A controller's world whose clients also signal."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.handler = EventHandler(self.controller, self.controller._deps)

    def say(self, kind: str, name: str | None = "a", *, scope: str = "", **f: Any) -> EventResult:
        event = Event.model_validate({"event": kind, "session_id": name, **f})
        return self.handler.apply(ScopedEvent(event=event, scope=scope))

    def arrive(self, request_id: str, name: str | None, blocks: range, **fields: Any) -> Session:
        """A turn that goes on until `finish`."""
        hashes = chain(*blocks)
        turn = self.controller.turn_arrived(
            request_id,
            name=name,
            scope=fields.pop("scope", ""),
            hashes=hashes,
            prompt_tokens=len(hashes) * BLOCK,
            tag=fields.pop("tag", EMPTY_TAG),
            reply_id=fields.pop("reply_id", None),
        )
        self.controller.turn_scheduled(request_id, gpu_hit_tokens=0, dram_hit_tokens=0)
        return turn.session

    def finish(self, request_id: str, blocks: range) -> None:
        hashes = chain(*blocks)
        self.controller.turn_finished(request_id, hashes=hashes, num_tokens=len(hashes) * BLOCK)

    def session(self, name: str = "a", scope: str = "") -> Session | None:
        return self.controller.sessions.get(SessionKey(scope, name))

    def pause(self, name: str = "a") -> Pause:
        session = self.session(name)
        assert session is not None and session.pause is not None
        return session.pause


@pytest.fixture
def paused() -> Told:
    world = Told()
    world.turn("a", range(10))
    return world


# --- pause ---


def test_a_pause_after_the_turn_is_decided_anew_with_what_it_says(paused: Told) -> None:
    before_s = paused.pause().returns_at_s
    result = paused.say("pause", tool="bash", command="make", expected_wait_s=500)
    assert result.status is Status.ACCEPTED and result.detail.startswith("hold: ")
    assert paused.pause().tag == TurnTag(tool="bash", command="make", expected_wait_s=500)
    assert paused.pause().returns_at_s > before_s + 300


def test_a_pause_during_the_turn_counts_when_it_ends() -> None:
    world = Told()
    world.arrive("r", "a", range(10))
    assert world.say("pause", tool="bash", timeout_s=9).status is Status.DEFERRED
    world.finish("r", range(10))
    assert world.pause().tag == TurnTag(tool="bash", timeout_s=9)
    assert world.records("pause")[0]["tool"] == "bash"


def test_what_a_pause_does_not_say_stays_as_the_turn_said_it() -> None:
    world = Told()
    world.turn("a", range(5), TurnTag(tool="bash", command="make", expected_wait_s=5))
    world.say("pause", timeout_s=70)
    tag = world.pause().tag
    assert (tag.tool, tag.command, tag.expected_wait_s, tag.timeout_s) == ("bash", "make", 5, 70)


def test_another_tool_does_not_keep_the_former_ones_command() -> None:
    world = Told()
    world.turn("a", range(5), TurnTag(tool="bash", command="make"))
    world.say("pause", tool="websearch")
    assert (world.pause().tag.tool, world.pause().tag.command) == ("websearch", None)


def test_of_parallel_calls_the_one_that_takes_longest_counts(paused: Told) -> None:
    calls = [
        {"tool": "read"},
        {"tool": "bash", "command": "sleep 400"},
        {"tool": "webfetch", "expected_wait_s": 3},
    ]
    paused.say("pause", calls=calls)
    assert paused.pause().tag.command == "sleep 400"
    assert paused.pause().returns_at_s - paused.clock.monotonic_s() > 200


def test_a_call_without_a_wait_of_its_own_gets_the_events(paused: Told) -> None:
    paused.say("pause", calls=[{"tool": "bash", "timeout_s": 4}], expected_wait_s=3, timeout_s=9)
    assert (paused.pause().tag.expected_wait_s, paused.pause().tag.timeout_s) == (3, 4)


@pytest.mark.parametrize(
    ("fields", "tool"),
    [
        ({"waits_for": "human"}, "human"),
        ({"waits_for": "tool"}, None),
        ({"waits_for": "human", "tool": "bash"}, "bash"),
    ],
)
def test_a_person_is_a_slow_tool(paused: Told, fields: dict[str, str], tool: str | None) -> None:
    paused.say("pause", **fields)
    assert paused.pause().tag.tool == tool


def test_a_pause_that_says_nothing_new_decides_nothing(paused: Told) -> None:
    paused.say("pause", tool="bash", expected_wait_s=60)
    paused.press()
    num_decisions = len(paused.ledger.records())
    assert paused.say("pause", tool="bash", expected_wait_s=60).status is Status.ACCEPTED
    assert len(paused.ledger.records()) == num_decisions


# --- resume ---


def test_the_first_resume_ends_the_wait(paused: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[float] = []
    predictor = paused.controller._deps.predictor
    monkeypatch.setattr(predictor, "observe", lambda *wait, **_: learned.append(wait[2]))
    paused.clock.advance(10)
    assert paused.say("resume").status is Status.ACCEPTED
    paused.clock.advance(5)
    paused.say("resume")
    paused.turn("a", range(11))
    assert learned == [10.0]


def test_a_new_pause_after_a_resume_is_waited_for_again(paused: Told) -> None:
    paused.say("resume")
    assert paused.pause().tool_done_s is not None
    paused.say("pause")  # With the same tag as before: it is not decided anew.
    assert paused.pause().tool_done_s is None and not paused.controller.pauses.next_done(9)


def test_a_resume_while_the_turn_runs_changes_nothing() -> None:
    world = Told()
    session = world.arrive("r", "a", range(5))
    assert world.say("resume").status is Status.ACCEPTED
    world.finish("r", range(5))
    assert session.pause is not None and session.pause.tool_done_s is None


# --- end ---


def test_an_end_frees_what_only_this_session_used(paused: Told) -> None:
    paused.turn("b", range(4))
    assert paused.say("end").status is Status.ACCEPTED
    assert paused.session() is None
    assert len(paused.controller.sessions.take_dead()) == 6, "four are shared with b"
    assert paused.records("end")[-1]["session_id"] == "a"


def test_an_end_during_a_running_turn_ends_with_it() -> None:
    world = Told()
    session = world.arrive("r", "a", range(5))
    assert world.say("end").status is Status.DEFERRED
    assert session.state is SessionState.RUNNING and session.active, "the turn is not disturbed"
    world.finish("r", range(5))
    assert world.session() is None and session.pause is None
    assert len(world.controller.sessions.take_dead()) == 5


def test_an_end_with_several_turns_running_ends_with_the_last_of_them() -> None:
    world = Told()
    for i in range(3):
        world.arrive(f"r{i}", "a", range(5))
    assert world.say("end").status is Status.DEFERRED
    for i in (1, 0):
        world.finish(f"r{i}", range(5))
        assert world.session() is not None
    world.finish("r2", range(5))
    assert world.session() is None


def test_a_turn_that_arrives_after_an_ended_one_goes_on() -> None:
    """The client has changed its mind: the last turn to finish decides."""
    world = Told()
    world.arrive("r0", "a", range(5))
    world.say("end")
    world.arrive("r1", "a", range(6))
    world.finish("r0", range(5))
    world.finish("r1", range(6))
    assert world.pause()


def test_after_an_end_every_signal_is_about_an_unknown_session(paused: Told) -> None:
    paused.say("end")
    for kind in ("pause", "resume", "heartbeat", "end"):
        assert paused.say(kind).status is Status.UNKNOWN


# --- heartbeat ---


def test_a_heartbeat_keeps_a_session_from_being_abandoned() -> None:
    world = Told(sessions={"abandon_after_s": 100})
    world.turn("a", range(5))
    world.turn("b", range(10, 15))
    for _ in range(5):
        world.clock.advance(60)
        assert world.say("heartbeat").status is Status.ACCEPTED
        world.controller.tidy()
    assert world.session("a") is not None and world.session("b") is None


def test_a_heartbeat_after_the_session_was_abandoned_revives_nothing() -> None:
    world = Told(sessions={"abandon_after_s": 100})
    world.turn("a", range(5))
    world.clock.advance(101)
    world.controller.tidy()
    assert len(world.controller.sessions.take_lapsed()) == 5
    assert world.say("heartbeat").status is Status.UNKNOWN
    assert world.session() is None and not world.controller.pauses.kept()


def test_a_heartbeat_says_nothing_of_the_tool(paused: Told) -> None:
    tag, decision = paused.pause().tag, paused.pause().decision
    paused.say("heartbeat")
    assert paused.pause().tag == tag and paused.pause().decision is decision
    assert paused.pause().tool_done_s is None


# --- order ---


def test_the_same_number_again_is_accepted_without_effect(paused: Told) -> None:
    assert paused.say("pause", seq=4, expected_wait_s=50).status is Status.ACCEPTED
    again = paused.say("pause", seq=4, expected_wait_s=900)
    assert again == EventResult(status=Status.ACCEPTED, detail="applied before")
    assert paused.pause().tag.expected_wait_s == 50


def test_an_older_number_is_rejected_without_effect(paused: Told) -> None:
    paused.say("resume", seq=5)
    late = paused.say("pause", seq=4, tool="bash")
    assert late.status is Status.REJECTED and "seq 4 is older than 5" in late.detail
    assert paused.pause().tool_done_s is not None and paused.pause().tag.tool is None


def test_an_old_end_does_not_end_a_session(paused: Told) -> None:
    paused.say("heartbeat", seq=9)
    assert paused.say("end", seq=8).status is Status.REJECTED
    assert paused.session() is not None


def test_numbers_may_leave_gaps_begin_anywhere_and_be_left_out(paused: Told) -> None:
    for seq in (0, 5, None, 6, None, 2**53):
        assert paused.say("heartbeat", seq=seq).status is Status.ACCEPTED
    assert paused.say("heartbeat", seq=6).status is Status.REJECTED


def test_a_rejected_event_is_no_sign_of_life() -> None:
    world = Told(sessions={"abandon_after_s": 100})
    world.turn("a", range(5))
    world.say("heartbeat", seq=2)
    world.clock.advance(60)
    world.say("heartbeat", seq=1)
    world.clock.advance(60)
    world.controller.tidy()
    assert world.session() is None


def test_sessions_count_their_own_numbers(paused: Told) -> None:
    paused.turn("b", range(20, 25))
    paused.say("heartbeat", "a", seq=100)
    assert paused.say("heartbeat", "b", seq=1).status is Status.ACCEPTED


# --- whose session ---


def test_a_foreign_session_looks_just_like_one_that_does_not_exist() -> None:
    world = Told()
    world.arrive("r", "a", range(5), scope="tenant", reply_id="reply")
    world.finish("r", range(5))
    for kind in ("pause", "resume", "heartbeat", "end"):
        foreign = world.say(kind, "a", scope="thief", seq=3, expected_wait_s=1)
        assert foreign == world.say(kind, "nobody", scope="thief")
        assert foreign == world.say(kind, None, scope="thief", request_id="reply")
        assert foreign.status is Status.UNKNOWN
    session = world.session("a", "tenant")
    assert session is not None and session.last_seq == -1
    assert session.pause is not None and session.pause.tag == EMPTY_TAG


def test_an_inferred_session_cannot_be_steered_by_its_name_but_by_a_request_of_it() -> None:
    world = Told()
    session = world.arrive("r", None, range(5), reply_id="chatcmpl-1")
    world.finish("r", range(5))
    assert session.is_inferred
    assert world.say("end", session.key.name).status is Status.UNKNOWN
    assert world.session(session.key.name) is session
    result = world.say("pause", None, request_id="chatcmpl-1", tool="bash")
    assert result.status is Status.ACCEPTED
    assert session.pause is not None and session.pause.tag.tool == "bash"


def test_a_client_cannot_take_an_inferred_sessions_name_to_get_at_it() -> None:
    world = Told()
    inferred = world.arrive("r", None, range(5))
    world.finish("r", range(5))
    assert world.say("end", "inferred-2").status is Status.UNKNOWN
    world.turn("mine", range(10, 15))
    assert world.say("end", "mine").status is Status.ACCEPTED
    assert world.session(inferred.key.name) is inferred


def test_with_a_request_the_name_does_not_matter(paused: Told) -> None:
    session = paused.arrive("r", "b", range(20, 25), reply_id="reply")
    paused.finish("r", range(20, 25))
    paused.say("pause", "a", request_id="reply", tool="bash")
    assert session.pause is not None and session.pause.tag.tool == "bash"
    assert paused.pause("a").tag == EMPTY_TAG


@pytest.mark.parametrize("is_before", [True, False])
def test_an_event_by_request_right_at_the_end_of_its_turn_reaches_the_pause(
    is_before: bool,
) -> None:
    """The reply's end and the event race; whichever is first, the pause knows its tool."""
    world = Told()
    session = world.arrive("r", None, range(5), reply_id="reply")
    if not is_before:
        world.finish("r", range(5))
    result = world.say("pause", None, request_id="reply", tool="bash", command="make")
    assert result.status is (Status.DEFERRED if is_before else Status.ACCEPTED)
    if is_before:
        world.finish("r", range(5))
    assert session.pause is not None
    assert session.pause.tag == TurnTag(tool="bash", command="make")


def test_a_request_of_an_ended_session_is_unknown() -> None:
    world = Told()
    world.arrive("r", "a", range(5), reply_id="reply")
    world.finish("r", range(5))
    world.say("end", None, request_id="reply")
    assert world.say("heartbeat", None, request_id="reply").status is Status.UNKNOWN
    world.turn("a", range(5))
    assert world.say("heartbeat", None, request_id="reply").status is Status.UNKNOWN


EVENTS = st.tuples(
    st.sampled_from(["pause", "resume", "heartbeat", "end"]),
    st.sampled_from(["a", "b", "nobody"]),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.floats(0, 1000)),
)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(EVENTS, max_size=12), running=st.booleans())
def test_whatever_is_said_twice_is_the_same_as_once(
    events: list[tuple[str, str, int | None, float | None]], running: bool
) -> None:
    """The second of two equal events changes no session and never raises."""
    world = Told()
    world.turn("a", range(5))
    world.arrive("r", "b", range(10, 15))
    if not running:
        world.finish("r", range(10, 15))
    for kind, name, seq, wait_s in events:
        world.say(kind, name, seq=seq, expected_wait_s=wait_s)
        before = _state(world)
        world.say(kind, name, seq=seq, expected_wait_s=wait_s)
        assert _state(world) == before
    assert all(session.state is not SessionState.ENDED for session in world.controller.sessions)


def _state(world: Told) -> list[Any]:
    return [
        (s.key, s.state, s.last_seq, [turn.tag for turn in s.active.values()])
        + ((s.pause.tag, s.pause.tool_done_s) if s.pause else ())
        for s in sorted(world.controller.sessions, key=lambda s: s.key.name)
    ]
