"""Which paused sessions give way when others need memory, and in which order.

What: ranks the pauses whose blocks are in the pool by what keeping them is worth (`policy.ranking`)
and hands out victims, each decided anew when it is reached. Why: memory goes to whoever needs it;
who is asked first decides how much is computed again. Where: the controller owns it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentkv.appraisal import Deps
from agentkv.pause_book import OpenPause, PauseBook
from agentkv.policy import Action, Decision, PauseView
from agentkv.policy.benefit import RankingBenefit
from agentkv.policy.ranking import (
    Candidate,
    Key,
    drop_keys,
    give_up_keys,
    give_up_order,
    is_due,
    is_ranked,
    worth_by_age,
    worth_now,
)
from agentkv.resumes import action_of
from agentkv.sessions import BlockRef, Pause, Session, SessionTracker

_MAX_LOOKS = 32  # Pauses decided anew when DRAM is short of room: the scheduler's time is dear.
_RANKING_S = 1e-4  # For each pause: a hundred times what ranking it takes.
_MARGIN = 2.0  # A prefetch displaces only what is worth so many times less.


@dataclass(frozen=True, slots=True)
class Victim:
    """A paused session whose private blocks may be given up, and as what."""

    session: Session
    refs: list[BlockRef]
    action: Action


class Decider(Protocol):
    """How the controller decides: by the policy, or against it with a reason of our own."""

    def decide(self, session: Session, pause: Pause) -> Decision: ...

    def overrule(self, session: Session, pause: Pause, action: Action, why: str) -> None: ...


class Portfolio:
    """Owned by the controller. Walks over all pauses in the pool, when somebody lacks blocks."""

    def __init__(
        self, sessions: SessionTracker, pauses: PauseBook, deps: Deps, decider: Decider
    ) -> None:
        self._pauses = pauses
        self._sessions = sessions
        self._deps = deps
        self._decider = decider
        self._ranked_until_s = -math.inf
        self.benefit = RankingBenefit()
        self.benefit_of_copies = RankingBenefit(of_copies=True)

    def note_decided(self, session: Session, view: PauseView, decision: Decision) -> None:
        for benefit in (self.benefit, self.benefit_of_copies):
            benefit.note_decided(session.key, view, decision)

    def note_returned(self, session: Session) -> None:
        for benefit in (self.benefit, self.benefit_of_copies):
            benefit.note_returned(session.key)

    def note_ended(self, session: Session) -> None:
        for benefit in (self.benefit, self.benefit_of_copies):
            benefit.note_ended(session.key)

    def order(self) -> list[OpenPause]:
        """Pauses whose blocks were not given up, the first to go first, as last decided."""
        kept = self._pauses.kept()
        order = give_up_order(
            [candidate_of(pause) for _, pause in kept],
            self._deps.clock.monotonic_s(),
            is_prediction_trusted=self.benefit.is_worth_it,
        )
        return [kept[i] for i in order]

    def victims(self) -> Iterator[Victim]:
        """Paused sessions to give up, worst to keep first; each is re-decided when it is reached.

        Where the policy does not rank, what it would hold goes last. The caller stops taking when
        it has enough.
        """
        kept = self._pauses.kept()
        kept_tokens = sum(pause.context_tokens for _, pause in kept)
        self.benefit.note_pressure(self._deps.footprint.bytes_for(kept_tokens))
        ranks_by_worth = is_ranked([candidate_of(pause) for _, pause in kept])
        for session, pause in self._lazily(kept):
            if action_of(pause) is Action.HOLD:
                self._overrule(session, pause, ranks_by_worth)
            yield self._give_up(session, pause)

    def later_returns(self, than_s: float, *, besides: Session) -> Iterator[Victim]:
        """Paused sessions whose KV may go for one that is expected then, the first to go first.

        Never one whose tool is done: two of those would push each other out in turns. Only what
        other tiers have whole: who returns later must not pay with computing for who returns first.
        And where worth is known, only what is worth much less than the one that is to come.
        """
        for session, pause in self.order():
            is_later = pause.tool_done_s is None and pause.returns_at_s > than_s
            if session is besides or not is_later:
                continue
            if self._deps.locate(self._sessions.private_blocks(session)).num_missing:
                continue
            if not self._is_worth_less(pause, besides.pause):
                return
            if action_of(pause) is Action.HOLD:
                why = "a session that returns sooner needs its blocks"
                self._decider.overrule(session, pause, Action.SWAP, why)
            yield self._give_up(session, pause)

    def to_drop(self, dram_bytes: int) -> Iterator[Session]:
        """Paused sessions whose copies DRAM, of that size, may drop, the one worth least first.

        None where the policy does not tell what they are worth, or predictions do not pay: then
        the least recently used should go. Nor oftener than takes a hundredth of the time.
        """
        now_s = self._deps.clock.monotonic_s()
        if now_s < self._ranked_until_s:
            return
        kept = self._pauses.kept()
        kept_tokens = sum(pause.context_tokens for _, pause in kept)
        kept_bytes = self._deps.footprint.bytes_for(kept_tokens)
        self.benefit_of_copies.note_pressure(kept_bytes + dram_bytes)
        pauses = [*kept, *self._pauses.away()]
        self._ranked_until_s = now_s + _RANKING_S * len(pauses)
        candidates = [candidate_of(pause) for _, pause in pauses]
        if not self.benefit_of_copies.is_worth_it or not is_ranked(candidates):
            return
        queue = list(zip(drop_keys(candidates, now_s), range(len(pauses)), strict=True))
        heapq.heapify(queue)
        looks_left = _MAX_LOOKS
        while queue:
            _, i = heapq.heappop(queue)
            session, pause = pauses[i]
            if looks_left and _is_out_of_date(pause, now_s):
                looks_left -= 1
                self._decider.decide(session, pause)
                heapq.heappush(queue, (drop_keys([candidate_of(pause)], now_s)[0], i))
            else:
                yield session

    # --- parts ---

    def _lazily(self, kept: Sequence[OpenPause]) -> Iterator[OpenPause]:
        """In order of give-up; who turns out to be worth more when decided anew waits again."""
        numbers = itertools.count()
        queue = [
            (key, next(numbers), pair, False)
            for key, pair in zip(self._keys(kept), kept, strict=True)
        ]
        heapq.heapify(queue)
        while queue:
            _, _, pair, is_fresh = heapq.heappop(queue)
            if not is_fresh:
                self._decider.decide(*pair)
                key = self._keys([pair])[0]
                if queue and key > queue[0][0]:
                    heapq.heappush(queue, (key, next(numbers), pair, True))
                    continue
            yield pair

    def _keys(self, pauses: Sequence[OpenPause]) -> list[Key]:
        return give_up_keys(
            [candidate_of(pause) for _, pause in pauses],
            self._deps.clock.monotonic_s(),
            is_prediction_trusted=self.benefit.is_worth_it,
        )

    def _overrule(self, session: Session, pause: Pause, ranks_by_worth: bool) -> None:
        why = "requests need its blocks and nothing else is left"
        if ranks_by_worth:
            why = "requests need its blocks and it is worth least of all that is held"
        self._decider.overrule(session, pause, Action.SWAP, why)

    def _is_worth_less(self, pause: Pause, coming: Pause | None) -> bool:
        """Whether to displace the one for the other; one whose tool is done always may come."""
        if coming is None or coming.tool_done_s is not None:
            return True
        candidates = [candidate_of(pause), candidate_of(coming)]
        if not is_ranked(candidates):
            return True
        worth_of = worth_now if self.benefit.is_worth_it else worth_by_age
        now_s = self._deps.clock.monotonic_s()
        here, there = (each.worth(worth_of, now_s) for each in candidates)
        return _MARGIN * here <= there

    def _give_up(self, session: Session, pause: Pause) -> Victim:
        self._pauses.give_up(session, pause)
        return Victim(session, self._sessions.private_blocks(session), action_of(pause))


def candidate_of(pause: Pause) -> Candidate:
    """What is known of an open pause, for the ranking."""
    decision = pause.decision
    assert decision is not None, "a pause is decided when it is opened"
    return Candidate(
        decision=decision,
        started_s=pause.started_s,
        decided_s=pause.decided_s,
        returns_at_s=pause.returns_at_s,
        is_tool_done=pause.tool_done_s is not None,
    )


def _is_out_of_date(pause: Pause, now_s: float) -> bool:
    assert pause.decision is not None
    age_s = now_s - pause.started_s
    return is_due(pause.decision, decided_age_s=pause.decided_s - pause.started_s, age_s=age_s)
