"""Sessions, turns and pauses: the one state machine.

    running ──turn ends──► paused ──next turn arrives──► resuming ──scheduled──► running
       └──────last turn──► ended ◄──abandoned / evicted──┘

A session is one agent run. Its identity is what the client says (scoped by the cache salt, so that
one tenant cannot steer another's), else it is inferred: a request whose blocks reach at least to
the end of a paused session's last prompt continues that session; anything else begins a new one.
Driven by `controller`; holds no KV and knows no engine.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from agentkv.events import TurnTag
from agentkv.policy.base import Decision
from agentkv.prefix_tree import Leaf, PrefixTree
from agentkv.reply_index import ReplyIndex
from agentkv.session_names import given_name, inferred_name

BlockRef = tuple[int, bytes]
"""(depth, block hash): depth counts full hash blocks from the root, 1 for the first."""


class SessionState(str, Enum):
    RUNNING = "running"
    PAUSED = "paused"
    RESUMING = "resuming"
    ENDED = "ended"


_LIVE_STATES = (SessionState.RUNNING, SessionState.PAUSED, SessionState.RESUMING)


class SessionKey(NamedTuple):
    """`scope` separates tenants (a digest of the cache salt); `name` is given or inferred."""

    scope: str
    name: str


@dataclass(slots=True)
class Pause:
    """The gap after a turn. Times are on the monotonic clock.

    `returns_at_s` is the return (median) as predicted at `decided_s`, `early_at_s` the time before
    which it is unlikely (10 %). `tool_done_s`: when the client said that the tool is done, None
    until then. `is_given_up`: its blocks went to the front of the free queue. `is_fetched`: there
    is nothing more of it to bring back to the pool. `park_at_s`: when it is due to be written to a
    tier below DRAM; `parked_in`: the one that has it whole; `slow_s`: how long its way up takes;
    `demoted`: blocks written down, `promoted`: tokens that came up for a prefetch, by tier.
    """

    pause_id: int
    turn: int
    started_s: float
    tag: TurnTag
    context_tokens: int
    decision: Decision | None = None
    decided_s: float = 0.0
    returns_at_s: float = 0.0
    early_at_s: float = 0.0
    tool_done_s: float | None = None
    is_given_up: bool = False
    is_fetched: bool = False
    park_at_s: float | None = None
    parked_in: str | None = None
    slow_s: float = 0.0
    demoted: Counter[str] = field(default_factory=Counter)
    promoted: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Branch:
    """A finished turn's chain of blocks that a later turn may extend."""

    leaf: Leaf
    finished_s: float


@dataclass(slots=True)
class Session:
    """`is_local`: its KV must not outlive this engine; its key does not tell what computed it."""

    key: SessionKey
    is_inferred: bool
    state: SessionState = SessionState.RUNNING
    num_turns: int = 0
    prompt_depth: int = 0
    context_tokens: int = 0
    last_active_s: float = 0.0
    pause: Pause | None = None
    branches: list[Branch] = field(default_factory=list)
    active: dict[str, Turn] = field(default_factory=dict)
    last_seq: int = -1
    is_local: bool = False


OpenPause = tuple[Session, Pause]


@dataclass(slots=True)
class Turn:
    """One request. `known_tokens`: prompt tokens that the session had computed before; `promoted`:
    of those, on their way up to DRAM, by tier. `tag_before`: its own, if a signal overrode it."""

    request_id: str
    session: Session
    number: int
    arrived_s: float
    prompt_tokens: int
    tag: TurnTag
    known_tokens: int = 0
    closed_pause: Pause | None = None
    is_scheduled: bool = False
    is_load_failed: bool = False
    tag_before: TurnTag | None = None
    promoted: Counter[str] = field(default_factory=Counter)


class SessionTracker:
    """All sessions of one engine. Owned by the scheduler thread.

    Bounded: at most `max_sessions` sessions; the paused session that was active longest ago is
    forgotten first. Blocks that no session needs any more gather in `take_dead`; those whose
    session may still come back, although nobody counts on it, in `take_lapsed`.
    """

    def __init__(
        self, *, tokens_per_hash: int, max_sessions: int = 100_000, infer_from_prefix: bool = True
    ) -> None:
        self.tree = PrefixTree()
        self._tokens_per_hash = tokens_per_hash
        self._max_sessions = max_sessions
        self._infer_from_prefix = infer_from_prefix
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()
        self._turns: dict[str, Turn] = {}
        self._replies: ReplyIndex[SessionKey] = ReplyIndex()
        self._dead: list[BlockRef] = []
        self._lapsed: list[BlockRef] = []
        self._num_in_state = dict.fromkeys(_LIVE_STATES, 0)
        self._num_inferred = 0
        self._num_pauses = 0
        self.on_end: Callable[[Session], object] = lambda session: None  # or was forgotten

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Sessions, the one that was active longest ago first; `reversed` begins with the last."""
        return iter(self._sessions.values())

    def __reversed__(self) -> Iterator[Session]:
        return reversed(self._sessions.values())

    def running_tokens(self) -> int:
        """Prompt tokens of the turns that have their blocks."""
        return sum(turn.prompt_tokens for turn in self._turns.values() if turn.is_scheduled)

    def get(self, key: SessionKey) -> Session | None:
        return self._sessions.get(key)

    def turn(self, request_id: str) -> Turn | None:
        return self._turns.get(request_id)

    def by_reply(self, scope: str, reply_id: str) -> Session | None:
        """The tenant's session of a recent request, by the id that the client sees in its reply."""
        key = self._replies.find((scope, reply_id))
        return self._sessions.get(key) if key is not None else None

    def count_by_state(self) -> dict[SessionState, int]:
        """Number of known sessions in each state but ENDED."""
        return dict(self._num_in_state)

    # --- transitions ---

    def arrive(
        self,
        request_id: str,
        *,
        name: str | None,
        scope: str,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        tag: TurnTag,
        now_s: float,
        reply_id: str | None = None,
    ) -> Turn:
        """A request, `reply_id` to its client, entered the waiting queue; an open pause is over."""
        name = given_name(name)
        session = self._find(name, scope, hashes) or self._begin(name, scope)
        known_depth = max(
            (self.tree.common_depth(branch.leaf, hashes) for branch in session.branches), default=0
        )
        turn = Turn(
            request_id=request_id,
            session=session,
            number=session.num_turns,
            arrived_s=now_s,
            prompt_tokens=prompt_tokens,
            tag=tag,
            known_tokens=min(known_depth * self._tokens_per_hash, prompt_tokens),
            closed_pause=session.pause,
        )
        session.num_turns += 1
        session.pause = None
        session.active[request_id] = turn
        self._turns[request_id] = turn
        if reply_id is not None:
            self._replies.note((scope, reply_id), session.key)
        self.touch(session, now_s)
        if session.state is not SessionState.RUNNING or len(session.active) == 1:
            self._set_state(session, SessionState.RESUMING)
        self._forget_surplus()
        return turn

    def schedule(self, turn: Turn) -> None:
        turn.is_scheduled = True
        if turn.session.state is not SessionState.ENDED:
            self._set_state(turn.session, SessionState.RUNNING)

    def requeue(self, turn: Turn) -> None:
        """The engine preempted the turn: it waits again."""
        turn.is_scheduled = False

    def finish(
        self, request_id: str, *, hashes: Sequence[bytes], num_tokens: int, now_s: float
    ) -> Turn | None:
        """A request ended with `hashes` computed. Opens a pause when it was the last one running.

        Returns None for a request that is not known (finished twice, or never arrived).
        """
        turn = self._turns.pop(request_id, None)
        if turn is None:
            return None
        session = turn.session
        session.active.pop(request_id, None)
        if session.state is SessionState.ENDED:
            known = self.tree.match_depth(hashes)
            self._dead.extend(enumerate(hashes[known:], start=known + 1))
            return turn
        self.touch(session, now_s)
        if hashes:
            self._add_branch(session, turn, hashes, now_s)
            session.context_tokens = num_tokens
            session.prompt_depth = min(turn.prompt_tokens // self._tokens_per_hash, len(hashes))
        if session.active:
            return turn
        if turn.tag.last_turn or not session.branches:
            self.end(session)
        else:
            self._pause(session, turn, now_s)
        return turn

    def end(self, session: Session, *, is_lapsed: bool = False) -> None:
        """Forgets a session; what only it used is dead. Turns still running finish undisturbed.

        `is_lapsed`: nobody said that it is over.
        """
        self._set_state(session, SessionState.ENDED)
        session.pause = None
        for branch in session.branches:
            (self._lapsed if is_lapsed else self._dead).extend(self.tree.release(branch.leaf))
        session.branches.clear()
        self._sessions.pop(session.key, None)
        self._replies.forget(session.key)
        self.on_end(session)

    def touch(self, session: Session, now_s: float) -> None:
        """The session shows life: it will be abandoned, or forgotten for others, later."""
        session.last_active_s = now_s
        if session.key in self._sessions:
            self._sessions.move_to_end(session.key)

    def end_abandoned(self, *, idle_since_s: float, most: int | None = None) -> list[OpenPause]:
        """Ends the paused sessions whose last activity was before `idle_since_s`, the first few."""
        abandoned: list[OpenPause] = []
        for session in self._sessions.values():
            if session.last_active_s >= idle_since_s or len(abandoned) == most:
                break
            if session.pause is not None:
                abandoned.append((session, session.pause))
        for session, _ in abandoned:
            self.end(session, is_lapsed=True)
        return abandoned

    def take_dead(self) -> list[BlockRef]:
        """Blocks that lost their last session since the last call, in no particular order."""
        dead, self._dead = self._dead, []
        return dead

    def take_lapsed(self) -> list[BlockRef]:
        """The same of sessions that were forgotten, not ended."""
        lapsed, self._lapsed = self._lapsed, []
        return lapsed

    def private_blocks(self, session: Session) -> list[BlockRef]:
        """Blocks that only this session uses, deepest first within each branch."""
        return [ref for branch in session.branches for ref in self.tree.private(branch.leaf)]

    def all_blocks(self, session: Session) -> list[BlockRef]:
        """Every block of the session, shared ones too, deepest first within each branch."""
        return [ref for branch in session.branches for ref in self.tree.chain(branch.leaf)]

    def clear(self) -> None:
        """Forgets every block (the engine dropped its caches); running turns stay known."""
        self.tree = PrefixTree()
        self._dead.clear()
        self._lapsed.clear()
        for session in list(self._sessions.values()):
            session.branches.clear()
            if not session.active:
                self.end(session)

    # --- parts ---

    def _find(self, name: str | None, scope: str, hashes: Sequence[bytes]) -> Session | None:
        if name is not None:
            return self._sessions.get(SessionKey(scope, name))
        if not self._infer_from_prefix:
            return None
        depth = self.tree.match_depth(hashes)
        if depth == 0:
            return None
        owner = self.tree.owner_at(hashes[depth - 1])
        session = self._sessions.get(owner) if isinstance(owner, SessionKey) else None
        if session is None or session.active or not session.is_inferred:
            return None
        return session if 0 < session.prompt_depth <= depth else None

    def _begin(self, name: str | None, scope: str) -> Session:
        self._num_inferred += name is None
        key = SessionKey(scope, name or inferred_name(self._num_inferred))
        session = Session(key=key, is_inferred=name is None)
        self._sessions[session.key] = session
        self._num_in_state[session.state] += 1
        return session

    def _set_state(self, session: Session, state: SessionState) -> None:
        if session.state is not SessionState.ENDED:
            self._num_in_state[session.state] -= 1
        if state is not SessionState.ENDED:
            self._num_in_state[state] += 1
        session.state = state

    def _add_branch(
        self, session: Session, turn: Turn, hashes: Sequence[bytes], now_s: float
    ) -> None:
        """The new chain replaces what it extends; what it turned away from is superseded."""
        extended, kept, superseded = _compare(session.branches, hashes, turn.arrived_s)
        if extended is not None:
            new_leaf: Leaf | None = self.tree.extend(extended, hashes, session.key)
        else:
            new_leaf = self.tree.add(hashes, session.key)
        assert new_leaf is not None
        for branch in superseded:
            self._dead.extend(self.tree.release(branch.leaf))
        session.branches = [*kept, Branch(new_leaf, now_s)]

    def _pause(self, session: Session, turn: Turn, now_s: float) -> None:
        self._num_pauses += 1
        self._set_state(session, SessionState.PAUSED)
        session.pause = Pause(
            pause_id=self._num_pauses,
            turn=turn.number,
            started_s=now_s,
            tag=turn.tag,
            context_tokens=session.context_tokens,
        )

    def _forget_surplus(self) -> None:
        while len(self._sessions) > self._max_sessions:
            paused = (s for s in self._sessions.values() if s.state is SessionState.PAUSED)
            if (oldest := next(paused, None)) is None:
                return
            self.end(oldest, is_lapsed=True)


def _compare(
    branches: Sequence[Branch], hashes: Sequence[bytes], arrived_s: float
) -> tuple[Leaf | None, list[Branch], list[Branch]]:
    """What the chain of a turn that arrived then extends, what it leaves, what it supersedes."""
    extended: Leaf | None = None
    kept: list[Branch] = []
    superseded: list[Branch] = []
    for branch in branches:
        leaf = branch.leaf
        is_prefix = len(hashes) >= leaf.depth and hashes[leaf.depth - 1] == leaf.block_hash
        if is_prefix and extended is None:
            extended = leaf
        elif is_prefix or branch.finished_s <= arrived_s:
            superseded.append(branch)
        else:
            kept.append(branch)
    return extended, kept, superseded
