"""A pause that the server hears of when it is over already."""

from agentkv.events import TurnTag
from agentkv.signals import Status
from tests.test_event_handler import Told


def test_a_pause_that_is_told_too_late_does_not_count_for_the_next_one() -> None:
    """The tool took a moment, and its turn was here before the server heard of it."""
    world = Told()
    world.turn("a", range(10))
    own = TurnTag(tool="edit")
    world.arrive("next", "a", range(12), tag=own)
    assert world.say("pause", tool="bash", expected_wait_s=900).status is Status.DEFERRED
    assert world.say("resume").status is Status.ACCEPTED
    world.finish("next", range(12))
    assert world.pause().tag == own
