"""READ FIRST. The one place where a pause is decided: events in, decisions and victims out.

    turn_arrived → turn_scheduled → turn_finished ─► pause: predictor → policy → ledger
                                                       │ re-decided while somebody needs blocks
                                                       ▼
                                  victims(): whose blocks may go, worst first

The connector's scheduler side drives it with what vLLM does and applies what it returns; a
simulator can drive it just so. It knows no engine, does no I/O but the ledger's, and takes time
from its clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from agentkv import metrics
from agentkv.appraisal import Appraiser, Deps
from agentkv.config import AgentKVConfig
from agentkv.entries import decision_fields
from agentkv.events import TurnTag
from agentkv.forecasts import Forecasts
from agentkv.hold_limits import HoldLimits
from agentkv.lessons import Lessons
from agentkv.newcomers import is_newcomer
from agentkv.pause_book import PauseBook
from agentkv.policy import Action, Decision, PauseView
from agentkv.portfolio import Portfolio, Victim
from agentkv.resumes import action_of, count_prefix, record_resume
from agentkv.sessions import (
    Pause,
    Session,
    SessionKey,
    SessionState,
    SessionTracker,
    Turn,
)


class Controller:
    """Owned by the scheduler thread; no method blocks. Blocks are hash blocks throughout."""

    def __init__(
        self, config: AgentKVConfig, deps: Deps, *, tokens_per_hash: int, pool_blocks: int
    ) -> None:
        self._config = config
        self._deps = deps
        self.pauses = PauseBook()
        pool_tokens = pool_blocks * tokens_per_hash
        self._limits = HoldLimits(config.hold, self.pauses, pool_tokens=pool_tokens)
        self.sessions = SessionTracker(
            tokens_per_hash=tokens_per_hash,
            max_sessions=config.sessions.max_sessions,
            infer_from_prefix=config.sessions.infer_from_prefix,
        )
        # Called with a pause that was decided, and with a session that ended or was forgotten.
        self.on_decided: Callable[[Session, Pause], object] = lambda session, pause: None
        self.on_ended: Callable[[Session], object] = lambda session: None
        self.sessions.on_end = self._forget
        self.portfolio = Portfolio(self.sessions, self.pauses, deps, self)
        self.tokens_by_tier = deps.tokens_by_tier
        self._forecasts = Forecasts(deps.recorder)
        self.lessons = Lessons(deps.predictor)
        self.appraiser = Appraiser(config, deps, self.sessions, tokens_per_hash=tokens_per_hash)

    # --- events ---

    def turn_arrived(
        self,
        request_id: str,
        *,
        name: str | None,
        scope: str,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        tag: TurnTag,
        reply_id: str | None = None,
    ) -> Turn:
        """A request entered the waiting queue: its session resumes, or a new one begins.

        `reply_id`: the id that the client will see in its reply.
        """
        now_s = self._deps.clock.monotonic_s()
        turn = self.sessions.arrive(
            request_id,
            name=name,
            scope=scope,
            hashes=hashes,
            prompt_tokens=prompt_tokens,
            tag=tag,
            now_s=now_s,
            reply_id=reply_id,
        )
        pause = turn.closed_pause
        if pause is not None and self.pauses.is_robbed(turn.session):
            self._settle(turn.session, pause)
        self.pauses.close(turn.session)
        if pause is not None:
            self.portfolio.note_returned(turn.session)
            if is_newcomer(turn.session, pause):
                self.appraiser.newcomers.note_back()
            wait_s = (pause.tool_done_s or now_s) - pause.started_s
            self.lessons.note(turn.session.key, pause.tag, wait_s)
            self._deps.recorder.sample(metrics.WAIT_SECONDS, value=wait_s)
            self._forecasts.judge(pause.pause_id, wait_s)
        return turn

    def turn_scheduled(
        self, request_id: str, *, gpu_hit_tokens: int, dram_hit_tokens: int
    ) -> str | None:
        """The turn got its blocks; so many of its prompt tokens were in the pool and in DRAM.

        Returns where a resumed turn's KV came from (see `record_resume`); None of all others.
        """
        turn = self.sessions.turn(request_id)
        if turn is None or turn.is_scheduled:
            return None
        self.sessions.schedule(turn)
        count_prefix(self._deps.recorder, turn, gpu_hit_tokens + dram_hit_tokens)
        pause, turn.closed_pause = turn.closed_pause, None
        if pause is None:
            return None
        return record_resume(
            self._deps, self.appraiser, turn, pause, gpu_hit_tokens, dram_hit_tokens
        )

    def turn_preempted(self, request_id: str) -> None:
        turn = self.sessions.turn(request_id)
        if turn is not None:
            self.sessions.requeue(turn)

    def turn_finished(self, request_id: str, *, hashes: Sequence[bytes], num_tokens: int) -> None:
        """The turn ended with these full blocks computed; a pause may begin."""
        turn = self.sessions.finish(
            request_id,
            hashes=hashes,
            num_tokens=num_tokens,
            now_s=self._deps.clock.monotonic_s(),
        )
        if turn is None:
            return
        session = turn.session
        if session.state is SessionState.ENDED:
            self._note_end(session)
        elif session.pause is not None:
            self.pauses.open(session, session.pause)
            if is_newcomer(session, session.pause):
                self.appraiser.newcomers.begin()
            self._decide(session, session.pause, kind="pause")

    def end(self, session: Session) -> None:
        """No turn will follow: what only this session used may go."""
        self.sessions.end(session)
        self._note_end(session)

    def retag(self, session: Session, tag: TurnTag) -> None:
        """More is known of an open pause: it is decided anew."""
        pause = session.pause
        if pause is not None and pause.tag != tag:
            was_newcomer, pause.tag = is_newcomer(session, pause), tag
            if was_newcomer and not is_newcomer(session, pause):
                self.appraiser.newcomers.forget()
            self._decide(session, pause, kind="redecide", is_told=True)

    # --- pressure ---

    def victims(self) -> Iterator[Victim]:
        """See `Portfolio.victims`."""
        return self.portfolio.victims()

    def note_evicted(self, hashes: Iterable[bytes]) -> None:
        """DRAM gave these blocks up for others: pauses that counted on them are looked at again."""
        for block_hash in hashes:
            owner = self.sessions.tree.owner_at(block_hash)
            session = self.sessions.get(owner) if isinstance(owner, SessionKey) else None
            if session is not None:
                self.pauses.rob(session, self._deps.clock.monotonic_s())

    def settle_evicted(self, most: int | None = None) -> None:
        """A swapped pause of which DRAM has nothing left will be recomputed: says so, of a few."""
        for session, pause in self.pauses.take_robbed(most):
            self._settle(session, pause)

    def _settle(self, session: Session, pause: Pause) -> None:
        if action_of(pause) is not Action.SWAP:
            return
        refs = self.sessions.private_blocks(session)
        if refs and self._deps.locate(refs).num_missing == len(refs):
            self.overrule(session, pause, Action.RECOMPUTE, "DRAM needed the room of its copy")

    def end_overdue(self, most: int | None = None) -> None:
        """Ends abandoned sessions and re-decides holds whose lease is over, the first few."""
        now_s = self._deps.clock.monotonic_s()
        abandoned = self.sessions.end_abandoned(
            idle_since_s=now_s - self._config.sessions.abandon_after_s, most=most
        )
        for session, pause in abandoned:
            self.lessons.note_abandoned(session.key, pause.tag, now_s - pause.started_s)
            self._note_end(session)
        expired = self.pauses.take_expired(now_s - self._config.hold.lease_s)
        for session, pause in itertools.islice(expired, most):
            if action_of(pause) is Action.HOLD:
                self.decide(session, pause)

    def tidy(self, most: int | None = None) -> None:
        """Once in a while: `end_overdue`, what was learnt, and the gauges."""
        self.end_overdue(most)
        self.lessons.learn()
        for state, count in self.sessions.count_by_state().items():
            self._deps.recorder.gauge(metrics.SESSIONS, state.value, value=count)
        self._deps.recorder.gauge(metrics.PRESSURE, value=self.appraiser.pressure)

    def clear(self) -> None:
        """The engine dropped its caches: no block of ours is anywhere."""
        for session in self.sessions:
            if session.pause is not None and is_newcomer(session, session.pause):
                self.appraiser.newcomers.forget()  # Whether it would have come back nobody knows.
        self.pauses.clear()
        self.sessions.clear()

    def close(self) -> None:
        """The engine stops: nothing is decided after this."""
        self.lessons.learn()
        self._deps.at_close()
        self._deps.ledger.close()

    def _forget(self, session: Session) -> None:
        self.pauses.close(session)
        self.portfolio.note_ended(session)
        self.on_ended(session)

    def _note_end(self, session: Session) -> None:
        self.lessons.learn()
        self._deps.predictor.forget(session.key)
        self._deps.ledger.record("end", scope=session.key.scope, session_id=session.key.name)

    # --- deciding ---

    def decide(self, session: Session, pause: Pause) -> Decision:
        """Decides an open pause anew."""
        return self._decide(session, pause, kind="redecide")

    def _decide(
        self, session: Session, pause: Pause, *, kind: str, is_told: bool = False
    ) -> Decision:
        self.lessons.learn()
        now_s = self._deps.clock.monotonic_s()
        view = self.appraiser.view(session, pause, now_s)
        decision = self._deps.policy.decide(view)
        decision = self._limits.apply(
            decision, session, pause, now_s=now_s, pressure=self.appraiser.pressure
        )
        previous = pause.decision
        pause.decision, pause.decided_s = decision, now_s
        pause.returns_at_s = now_s + view.wait.p50_s
        pause.early_at_s = now_s + view.wait.p10_s
        self.pauses.note(session, pause)
        if kind == "pause" or is_told:
            self._forecasts.note(pause.pause_id, view.wait, age_s=view.age_s)
        if kind == "pause" or previous is None or previous.action is not decision.action:
            self._record_decision(kind, session, pause, view)
        self.portfolio.note_decided(session, view, decision)
        self.on_decided(session, pause)
        return decision

    def overrule(self, session: Session, pause: Pause, action: Action, why: str) -> None:
        """What happened has decided otherwise: the pause and the ledger follow."""
        assert pause.decision is not None
        reason = f"{why} ({pause.decision.reason})"
        pause.decision = replace(pause.decision, action=action, reason=reason)
        self.pauses.note(session, pause)
        view = self.appraiser.view(session, pause, self._deps.clock.monotonic_s())
        self._record_decision("redecide", session, pause, view)

    def _record_decision(self, kind: str, session: Session, pause: Pause, view: PauseView) -> None:
        assert pause.decision is not None
        action = pause.decision.action.value
        self._deps.recorder.count(metrics.DECISIONS, action)
        self._deps.recorder.count(metrics.DECIDED_BYTES, action, by=view.kv_bytes)
        self._deps.ledger.choices.note(pause.pause_id, pause.decision, view)
        self._deps.ledger.record(kind, **decision_fields(session, pause, view))
