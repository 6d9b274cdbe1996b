"""The default wait predictor: what such waits took before, given how long this one has lasted.

What: histograms of waits from all waits down to the very command, each leaning on the coarser one
(`contexts`, `levels`), mixed with what the session's own past says (`session_memory`, `mixing`).
Why: waits are heavy-tailed with two humps and time-out spikes, so whole distributions are kept, and
the session's own last time is the strongest hint. Where: behind the `WaitPredictor` seam; one per
engine, in the scheduler process; thread-free.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

from agentkv.predict import histogram
from agentkv.predict.base import WaitEstimate
from agentkv.predict.confidence import Gains
from agentkv.predict.contexts import ROOTS, Seen, chain
from agentkv.predict.distribution import Distribution
from agentkv.predict.endings import Endings
from agentkv.predict.histogram import Mass
from agentkv.predict.levels import Levels
from agentkv.predict.mixing import Mixing
from agentkv.predict.opinion import Opinion, form_opinion
from agentkv.predict.place import HUMAN, Place, place_of, span_s
from agentkv.predict.remaining import estimate_left
from agentkv.predict.saved_state import SavedState, checked, put_levels, saved_levels
from agentkv.predict.seeds import prior_levels
from agentkv.predict.session_memory import SessionMemories, SessionMemory
from agentkv.predict.stated import (
    StatedTrust,
    bound_in_force,
    is_right,
    with_sleep,
    with_statement,
    with_timeout,
)

_LONGEST_S = 10 * histogram.MAX_WAIT_S
_MAX_CACHED = 1024
_MAX_STALE = 32  # waits of other sessions that a cached distribution need not know of


class _Figures(NamedTuple):
    """What was said of a wait, in seconds."""

    stated_s: float | None = None
    bound_s: float | None = None


class _Cached(NamedTuple):
    distribution: Distribution
    opinion: Opinion
    num_observed: int
    num_own: int
    figures: _Figures


class HierarchicalWaitPredictor:
    """Memory is bounded: `max_levels` histograms of 1 kB, `max_sessions` of at most 30 kB.

    `is_seeded`: begins with the shipped waits of `priors`; else it knows nothing at first.
    """

    def __init__(
        self, *, max_levels: int = 4096, max_sessions: int = 1024, is_seeded: bool = True
    ) -> None:
        self.levels = Levels(max_levels, prior_levels() if is_seeded else None)
        self.sessions = SessionMemories(max_sessions)
        self.mixing = Mixing()
        self.endings = Endings()
        self.gains = Gains()
        self.stated = StatedTrust()
        self.num_observed = 0
        self._cache: OrderedDict[tuple[Place, Hashable], _Cached] = OrderedDict()

    # --- the contract ---

    def estimate(
        self,
        tool: str | None,
        command: str | None,
        *,
        age_s: float = 0.0,
        expected_wait_s: float | None = None,
        timeout_s: float | None = None,
        session: Hashable | None = None,
    ) -> WaitEstimate:
        """See `WaitPredictor.estimate`."""
        return self.estimate_at(
            place_of(tool, command),
            age_s=age_s,
            expected_wait_s=expected_wait_s,
            timeout_s=timeout_s,
            session=session,
        )

    def observe(
        self,
        tool: str | None,
        command: str | None,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        """See `WaitPredictor.observe`."""
        self.observe_at(place_of(tool, command), wait_s, session=session, is_censored=is_censored)

    def forget(self, session: Hashable) -> None:
        """See `WaitPredictor.forget`."""
        self.sessions.forget(session)

    # --- the same by place ---

    def estimate_at(
        self,
        place: Place,
        *,
        age_s: float = 0.0,
        expected_wait_s: float | None = None,
        timeout_s: float | None = None,
        session: Hashable | None = None,
    ) -> WaitEstimate:
        """As `estimate`, for a call whose place is known."""
        age = span_s(age_s, _LONGEST_S) or 0.0
        bound = bound_in_force(span_s(timeout_s, _LONGEST_S), age)
        figures = _Figures(span_s(expected_wait_s, _LONGEST_S), bound)
        known = self._known(place, session, figures)
        is_human = place.tool == HUMAN
        outlived = 1 - known.distribution.chance_within(age)
        source, num_observed = _source(place, known.opinion), known.opinion.num_observed
        if figures.stated_s is not None:
            source, num_observed = "stated wait", 0
        elif place.sleep_s > 0:
            source, num_observed = f"sleep {place.sleep_s:g}", 0
        return estimate_left(
            known.distribution,
            age_s=age,
            bound_s=bound,
            chance_ended=self.endings.chance(is_human=is_human, outlived=outlived),
            confidence=self.gains.confidence(place.tool, known.distribution.gain(age)),
            source=source,
            num_observed=num_observed,
        )

    def distribution_at(
        self, place: Place, *, timeout_s: float | None = None, session: Hashable | None = None
    ) -> Distribution:
        """Of the whole wait of a call that begins now; it must not be changed."""
        bound = bound_in_force(span_s(timeout_s, _LONGEST_S), 0.0)
        return self._known(place, session, _Figures(bound_s=bound)).distribution

    def observe_at(
        self,
        place: Place,
        wait_s: float,
        *,
        session: Hashable | None = None,
        is_censored: bool = False,
    ) -> None:
        """As `observe`, for a call whose place is known."""
        wait = span_s(wait_s, _LONGEST_S)
        if wait is None:
            return
        memory = self.sessions.touch(session) if session is not None else None
        seen = _seen(place, session, memory)
        opinion = self._held_opinion(place, session, memory)
        if is_censored:
            mass = Distribution(opinion.mixed, opinion.reference).outlived_mass(wait)
            num = self._chance_unended(place, opinion, wait)
        else:
            mass, num = histogram.observed(wait), 1.0
            self._score(place, opinion, wait, mass)
        self.endings.add(is_human=place.tool == HUMAN, ended=1 - num)
        self.num_observed += 1
        for key in dict.fromkeys((*opinion.keys, *chain(place, ""))):
            if not (is_censored and key in ROOTS):
                self.levels.add(key, mass, num=num)
        if memory is not None:
            self._check_statement(memory.stated, wait, is_censored=is_censored)
            memory.add(place, seen, mass, None if is_censored else wait)

    def _held_opinion(
        self, place: Place, session: Hashable | None, memory: SessionMemory | None
    ) -> Opinion:
        """The one that the session's pause was decided on, if there is one; else a new one."""
        cached = self._cache.get((place, session)) if memory is not None else None
        if cached is not None and memory is not None and cached.num_own == memory.num_observed:
            return cached.opinion
        seen = _seen(place, session, memory)
        return form_opinion(place, seen, memory, self.levels, self.mixing)

    def _chance_unended(self, place: Place, opinion: Opinion, wait_s: float) -> float:
        """That a session which was given up would have come back, after a longer wait."""
        returned = Distribution(opinion.root, opinion.reference)
        outlived = 1 - returned.chance_within(wait_s)
        return 1 - self.endings.chance_over(is_human=place.tool == HUMAN, outlived=outlived)

    def _score(
        self,
        place: Place,
        opinion: Opinion,
        wait_s: float,
        mass: Mass,
    ) -> None:
        """How good the opinion was moves the weights of its views, and what it is trusted with."""
        if opinion.slots:
            self.mixing.learn(opinion.slots, opinion.evidence, opinion.mixed, mass)
        i = histogram.bin_of(wait_s)
        kept = math.log(float(opinion.mass[i]) / max(float(opinion.reference[i]), 1e-12))
        promised = Distribution(opinion.mass, opinion.reference).gain(0.0)
        self.gains.add(place.tool, promised=promised, kept=kept)

    def _check_statement(self, own: StatedTrust, wait_s: float, *, is_censored: bool) -> None:
        """A figure that was stated for this wait has come true or not."""
        stated_s, own.open_s = own.open_s, None
        if stated_s is None or is_censored:
            return
        for trust in (own, self.stated):
            trust.add(is_right=is_right(stated_s, wait_s))

    # --- across restarts ---

    def dump(self) -> dict[str, Any]:
        """What was learned of all sessions, JSON-able; for `load`."""
        state = SavedState(
            num_bins=histogram.NUM_BINS,
            num_observed=self.num_observed,
            levels=list(saved_levels(self.levels)),
            weights=self.mixing.dump(),
            gains=self.gains.dump(),
            endings=self.endings.dump(),
            stated=(self.stated.num_right, self.stated.num),
        )
        return state.model_dump(mode="json")

    def load(self, state: object) -> bool:
        """Takes what `dump` gave, in place of what was learned; False if it is not that.

        Then a line in the log says why, and nothing has changed.
        """
        saved = checked(state)
        if saved is None:
            return False
        put_levels(saved.levels, self.levels)
        self.mixing.load(saved.weights)
        self.gains.load(saved.gains)
        self.endings.load(saved.endings)
        self.stated.num_right, self.stated.num = saved.stated
        self.num_observed = saved.num_observed
        self._cache.clear()
        return True

    # --- inside ---

    def _known(self, place: Place, session: Hashable | None, figures: _Figures) -> _Cached:
        """The distribution at a place, from the cache if little was learned since."""
        memory = self.sessions.get(session) if session is not None else None
        if figures.stated_s is not None and session is not None:
            memory = self.sessions.touch(session)
        if memory is not None:
            memory.stated.open_s = figures.stated_s
        num_own = memory.num_observed if memory is not None else 0
        stale = _MAX_STALE if session is not None else 0
        cached = self._cache.get((place, session))
        if (
            cached is not None
            and cached.num_own == num_own
            and cached.figures == figures
            and self.num_observed - cached.num_observed <= stale
        ):
            return cached
        seen = _seen(place, session, memory)
        opinion = form_opinion(place, seen, memory, self.levels, self.mixing)
        mass = self._with_figures(opinion.mass, place, memory, figures)
        distribution = Distribution(mass, opinion.reference)
        cached = _Cached(distribution, opinion, self.num_observed, num_own, figures)
        self._cache[place, session] = cached
        self._cache.move_to_end((place, session))
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return cached

    def _with_figures(
        self, mass: Mass, place: Place, memory: SessionMemory | None, figures: _Figures
    ) -> Mass:
        if figures.stated_s is not None:
            share = memory.stated.share(self.stated) if memory is not None else self.stated.share()
            mass = with_statement(mass, figures.stated_s, share)
        elif place.sleep_s > 0:
            mass = with_sleep(mass, place.sleep_s)
        return mass if figures.bound_s is None else with_timeout(mass, figures.bound_s)


def _seen(place: Place, session: Hashable | None, memory: SessionMemory | None) -> Seen:
    if memory is not None:
        return memory.seen(place)
    return "" if session is None else "first_time"


def _source(place: Place, opinion: Opinion) -> str:
    """What the estimate rests on, in words."""
    kind = opinion.finest.kind
    if kind in ("all", "human"):
        return "any tool" if kind == "all" else HUMAN
    tool = place.tool or "unnamed tool"
    words = {"tool": "", "class": place.cls, "command": f"{place.head}, this command"}
    what = words.get(kind, opinion.finest.names[2] if len(opinion.finest.names) > 2 else "")
    return f"{tool}:{what}".rstrip(":") if what else tool
