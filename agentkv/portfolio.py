"""Which paused sessions give way when others need memory, and in which order.

What: ranks the pauses whose blocks are in the pool by what keeping them is worth (`policy.ranking`)
and hands out victims, each decided anew when it is reached. Why: memory goes to whoever needs it;
who is asked first decides how much is computed again. Where: the controller owns it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from agentkv.appraisal import Deps
from agentkv.pause_book import PauseBook
from agentkv.pause_table import NO_PAUSES, RankedQueue, candidate_of
from agentkv.policy import Action, Decision, PauseView
from agentkv.policy.benefit import RankingBenefit
from agentkv.policy.ranking import (
    Key,
    drop_keys,
    give_up_keys,
    is_due,
    is_ranked,
    worth_by_age,
    worth_now,
)
from agentkv.policy.ranking_many import are_ranked, drop_column, give_up_columns
from agentkv.resumes import action_of
from agentkv.sessions import BlockRef, OpenPause, Pause, Session, SessionTracker

# The scheduler's time is dear: so many pauses are looked at closely, and so many passed over.
_MAX_LOOKS, _MAX_PASSED = 32, 256
_MAX_PUT_BACK = 16  # And so many, for one who lacks blocks, are put back as they are worth more.
_RANKING_SHARE = 0.01  # Of the time, ranking takes at most this much:
_RANKING_S, _MAX_RANKING_S = 1e-4, 1e-3  # the least and the longest rest after it, per pause.
_MARGIN = 2.0  # A prefetch displaces only what is worth so many times less.


@dataclass(frozen=True, slots=True)
class Victim:
    """A paused session whose private blocks may be given up, and as what."""

    session: Session
    refs: list[BlockRef]
    action: Action


class _Ranking(NamedTuple):
    """Pauses that were in the pool at some moment, the first to go first.

    `kept_bytes`: of all of them; `until_s`: not to be made anew before.
    """

    queue: RankedQueue
    kept_bytes: float
    is_by_worth: bool
    until_s: float


_NO_RANKING = _Ranking(NO_PAUSES, 0.0, False, -math.inf)


class Decider(Protocol):
    """How the controller decides: by the policy, or against it with a reason of our own."""

    def decide(self, session: Session, pause: Pause) -> Decision: ...

    def overrule(self, session: Session, pause: Pause, action: Action, why: str) -> None: ...


class Portfolio:
    """Owned by the controller. Ranks all pauses in the pool, when somebody lacks blocks."""

    def __init__(
        self, sessions: SessionTracker, pauses: PauseBook, deps: Deps, decider: Decider
    ) -> None:
        self._pauses = pauses
        self._sessions = sessions
        self._deps = deps
        self._decider = decider
        self._ranking = _NO_RANKING
        self._copies, self._copies_ranked_until_s = NO_PAUSES, -math.inf
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

    def order(self) -> Iterator[OpenPause]:
        """Pauses whose blocks were not given up, the first to go first, as last decided.

        As of a moment ago: without those that began since.
        """
        return (pair for pair in self._ranked().queue if self._pauses.is_kept(*pair))

    def victims(self) -> Iterator[Victim]:
        """Paused sessions to give up, worst to keep first; each is re-decided when it is reached.

        Where the policy does not rank, what it would hold goes last. The caller stops taking when
        it has enough.
        """
        for _ in range(2):
            ranking = self._ranked()
            self.benefit.note_pressure(ranking.kept_bytes)
            for session, pause in self._lazily(ranking.queue):
                if action_of(pause) is Action.HOLD:
                    self._overrule(session, pause, ranking.is_by_worth)
                yield self._give_up(session, pause)
            self._ranking = _NO_RANKING  # Some pauses may have begun since it was made.

    def later_returns(self, than_s: float, *, besides: Session) -> Iterator[Victim]:
        """Paused sessions whose KV may go for one that is expected then, the first to go first.

        Never one whose tool is done: two of those would push each other out in turns. Only what
        other tiers have whole: who returns later must not pay with computing for who returns first.
        And where worth is known, only what is worth much less than the one that is to come.
        """
        looks_left = _MAX_LOOKS
        for session, pause in itertools.islice(self.order(), _MAX_PASSED):
            is_later = pause.tool_done_s is None and pause.returns_at_s > than_s
            if session is besides or not is_later:
                continue
            if not looks_left:
                return
            looks_left -= 1
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

        The caller stops taking when it has enough: the next call begins with the last one taken.
        None where the policy does not tell what they are worth, or predictions do not pay: then
        the least recently used should go. Ranked anew for a hundredth of the time at most.
        """
        now_s = self._deps.clock.monotonic_s()
        if now_s >= self._copies_ranked_until_s:
            self._copies = self._ranked_copies(now_s, dram_bytes)
        queue, looks_left = self._copies, _MAX_LOOKS
        while (entry := queue.first()) is not None:
            (_, is_away), order, (session, pause) = entry
            if session.pause is not pause:
                queue.pop()
            elif looks_left and _is_out_of_date(pause, now_s):
                queue.pop()
                looks_left -= 1
                self._decider.decide(session, pause)
                worth = drop_keys([candidate_of(pause)], now_s)[0]
                queue.put(((worth, is_away), order, (session, pause)))
            else:
                yield session
                queue.pop()  # Only if there is nothing left of it.

    # --- parts ---

    def _ranked_copies(self, now_s: float, dram_bytes: int) -> RankedQueue:
        """All pauses, the one whose copy in DRAM is worth least first."""
        table = self._pauses.table
        rows = table.rows()
        self.benefit_of_copies.note_pressure(self._kept_bytes() + dram_bytes)
        queue = NO_PAUSES
        if self.benefit_of_copies.is_worth_it and are_ranked(rows):
            columns = (drop_column(rows, now_s), ~rows["is_kept"])
            queue = table.sorted(np.arange(len(rows)), columns)
        rest_s = max(_RANKING_S * len(rows), self._rest_s(now_s, len(rows)))
        self._copies_ranked_until_s = now_s + rest_s
        return queue

    def _ranked(self) -> _Ranking:
        """All pauses in the pool; of thousands as they were ranked a moment ago."""
        now_s = self._deps.clock.monotonic_s()
        if now_s < self._ranking.until_s:
            return self._ranking
        table = self._pauses.table
        places = table.kept()
        rows = table.rows().take(places)
        is_trusted = self.benefit.is_worth_it
        columns = give_up_columns(rows, now_s, is_prediction_trusted=is_trusted)
        self._ranking = _Ranking(
            table.sorted(places, columns),
            self._kept_bytes(),
            are_ranked(rows),
            now_s + self._rest_s(now_s, len(rows)),
        )
        return self._ranking

    def _kept_bytes(self) -> int:
        table = self._pauses.table
        kept_tokens = table.rows()["context_tokens"][table.kept()].sum()
        return self._deps.footprint.bytes_for(int(kept_tokens))

    def _rest_s(self, since_s: float, num_pauses: int) -> float:
        """Before they are ranked again: they were since then, which may be seldom."""
        took_s = self._deps.clock.monotonic_s() - since_s
        return min(took_s / _RANKING_SHARE, _MAX_RANKING_S * num_pauses)

    def _lazily(self, queue: RankedQueue) -> Iterator[OpenPause]:
        """Takes them in order; who turns out to be worth more when decided anew waits again.

        But only so many: a request waits for the blocks.
        """
        fresh: set[int] = set()
        num_left = _MAX_PUT_BACK
        while (entry := queue.pop()) is not None:
            _, number, pair = entry
            if not self._pauses.is_kept(*pair):
                continue
            if number not in fresh:
                fresh.add(number)
                self._decider.decide(*pair)
                key, first = self._key(pair), queue.first()
                if first is not None and key > first[0] and num_left:
                    num_left -= 1
                    queue.put((key, number, pair))
                    continue
            yield pair

    def _key(self, pair: OpenPause) -> Key:
        candidates, is_trusted = [candidate_of(pair[1])], self.benefit.is_worth_it
        now_s = self._deps.clock.monotonic_s()
        return give_up_keys(candidates, now_s, is_prediction_trusted=is_trusted)[0]

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


def _is_out_of_date(pause: Pause, now_s: float) -> bool:
    assert pause.decision is not None
    age_s = now_s - pause.started_s
    return is_due(pause.decision, decided_age_s=pause.decided_s - pause.started_s, age_s=age_s)
