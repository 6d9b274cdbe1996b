"""Which earlier request each request goes on from.

What: a session's requests are a tree: turns grow it, retries and forks branch it, sub-agents and
title makers plant others beside it. Why: held against the wrong request, every healthy log looks
broken. A request is held against the one that it shares most with, and begins a new line where it
shares nothing that an edit could explain; doubt is decided for silence.
Where: between `log_file` and `compare`. Bounded: the newest requests of each session are kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from agentkv.doctor.alignment import MAX_MESSAGES, is_summary, leading_run
from agentkv.doctor.masks import common_chars, message_key
from agentkv.doctor.request import Request
from agentkv.doctor.same_conversation import edited_from

MAX_NODES = 64
"""Requests of one session, or of all that name none, that a later one may go on from: for those
without a name it is `MAX_NODES_UNNAMED`."""

MAX_NODES_UNNAMED = 512
_MIN_COMPACTED = 4


class Relation(Enum):
    NONE = "none"
    RETRY = "retry"
    APPEND = "append"
    EDIT = "edit"
    COMPACTION = "compaction"


@dataclass(slots=True, eq=False)
class Node:
    """A request in its session. `turn` counts the session's requests from 1."""

    request: Request
    session: str
    turn: int
    keys: tuple[int, ...]
    relation: Relation = Relation.NONE
    previous: Node | None = None
    is_extended: bool = False


@dataclass(frozen=True, slots=True)
class _Match:
    relation: Relation
    node: Node
    num_matched: int
    num_chars: int

    @property
    def rank(self) -> tuple[int, bool, int]:
        return self.num_matched, self.relation is not Relation.EDIT, self.num_chars


@dataclass(slots=True)
class Threads:
    """All sessions of a log, fed in its order."""

    _pools: dict[str | None, deque[Node]] = field(default_factory=dict)
    _turns: Counter[str] = field(default_factory=Counter)
    _num_unnamed: int = 0

    def add(self, request: Request) -> Node:
        """The request in its place; `previous` is None where it begins something new."""
        keys = tuple(map(message_key, request.messages))
        found = self._find(request, keys)
        session = request.session or (found.node.session if found else self._new_name())
        self._turns[session] += 1
        node = Node(request, session, self._turns[session], keys)
        if found is not None:
            node.relation, node.previous = found.relation, found.node
            if found.relation is not Relation.COMPACTION:
                found.node.is_extended = True
        self._pool(request.session).append(node)
        return node

    def _pool(self, session: str | None) -> deque[Node]:
        size = MAX_NODES_UNNAMED if session is None else MAX_NODES
        return self._pools.setdefault(session, deque(maxlen=size))

    def _new_name(self) -> str:
        self._num_unnamed += 1
        return f"unnamed-{self._num_unnamed}"

    def _find(self, request: Request, keys: tuple[int, ...]) -> _Match | None:
        own = self._pools.get(request.session, ())
        found = _best(request, keys, own) or _compacted(request, own)
        if found is None and request.session is None:
            found = self._find_named(request, keys)
        return found

    def _find_named(self, request: Request, keys: tuple[int, ...]) -> _Match | None:
        """A session that had a name until this request: only where it clearly goes on."""
        pools = (pool for name, pool in self._pools.items() if name is not None)
        nodes = (node for pool in pools for node in pool if len(node.keys) > 1)
        found = _best(request, keys, (node for node in nodes if _is_prefix(node.keys, keys)))
        return found if found is not None and found.relation is Relation.APPEND else None


def _is_prefix(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    return len(old) < len(new) and new[len(old) - 1] == old[-1] and new[: len(old)] == old


def _best(request: Request, keys: tuple[int, ...], nodes: Iterable[Node]) -> _Match | None:
    """What the request shares most with; of equals the newest."""
    best: _Match | None = None
    known = set(keys)
    for node in nodes:
        if node.request.prompt_ids or request.prompt_ids:
            match = _match_ids(request, node)
        elif len(node.keys) > 1 and known.isdisjoint(node.keys):
            continue
        else:
            match = _match(request, keys, node)
        if match is not None and (best is None or match.rank >= best.rank):
            best = match
    return best


def _match(request: Request, keys: tuple[int, ...], node: Node) -> _Match | None:
    lead = leading_run(node.keys, keys)
    relation, num_matched = Relation.NONE, lead
    if lead == len(node.keys):
        relation = Relation.APPEND if len(keys) > lead else Relation.RETRY
    elif (
        _may_be_edited(node) and len(keys) > lead and max(len(keys), len(node.keys)) <= MAX_MESSAGES
    ):
        edited = edited_from(node.request, request, node.keys, keys, lead)
        relation, num_matched = (Relation.NONE, 0) if edited is None else (Relation.EDIT, edited)
    if relation is Relation.NONE:
        return None
    return _Match(relation, node, num_matched, _common_head_chars(node.request, request))


def _may_be_edited(node: Node) -> bool:
    """Without a name only the end of a conversation: its beginnings would all be looked through."""
    return node.request.session is not None or not node.is_extended


def _match_ids(request: Request, node: Node) -> _Match | None:
    """Prompts that are token ids: one goes on from another where most of that is in it."""
    old, new = node.request.prompt_ids, request.prompt_ids
    num = leading_run(old, new)
    if not old or not new or 2 * num < len(old):
        return None
    relation = Relation.APPEND if len(new) > len(old) else Relation.RETRY
    return _Match(relation, node, num, num)


def _common_head_chars(old: Request, new: Request) -> int:
    """How much of head, tools and first message is the same to the letter."""
    return sum(
        common_chars(a, b)
        for a, b in (
            ("\n".join(old.head), "\n".join(new.head)),
            ("".join(tool.text for tool in old.tools), "".join(tool.text for tool in new.tools)),
        )
    ) + (1 if old.model == new.model else 0)


def _compacted(request: Request, nodes: Iterable[Node]) -> _Match | None:
    """The newest long history that a summary may stand for."""
    if not is_summary(request.messages[:3]):
        return None
    for node in reversed(list(nodes)):
        former = node.request
        is_longer = len(former.messages) >= max(_MIN_COMPACTED, len(request.messages) + 1)
        is_same = former.head == request.head and [t.name for t in former.tools] == [
            t.name for t in request.tools
        ]
        if is_longer and not node.is_extended and (is_same or request.session is not None):
            return _Match(Relation.COMPACTION, node, 0, 0)
    return None
