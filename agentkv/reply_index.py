"""Which session a reply belonged to, for signals that know no more than the reply's id.

What: the ids of the last requests of every session, and the way back from an id to its session.
Why: who watches a reply sees its id, and not every client names its session.
Where: kept by `sessions`; an id is the one in the reply's body, not the engine's own, together with
the scope of its tenant: clients may choose the ids of their requests, and so those of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

_Owner = TypeVar("_Owner", bound=Hashable)
ReplyId = tuple[str, str]
"""(scope, id)."""

MAX_IDS = 8  # of an owner: parallel requests, and one whose reply is still on its way


class ReplyIndex(Generic[_Owner]):
    """Bounded by `MAX_IDS` times the number of owners that were not forgotten."""

    def __init__(self) -> None:
        self._owners: dict[ReplyId, _Owner] = {}
        self._ids: dict[_Owner, deque[ReplyId]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def note(self, reply_id: ReplyId, owner: _Owner) -> None:
        """The newest of the owner's ids; an id seen before goes to the last who used it."""
        ids = self._ids.setdefault(owner, deque())
        if reply_id in ids:  # one of several samples of a request, or used again
            ids.remove(reply_id)
        ids.append(reply_id)
        self._owners[reply_id] = owner
        if len(ids) > MAX_IDS:
            self._drop(ids.popleft(), owner)

    def find(self, reply_id: ReplyId) -> _Owner | None:
        return self._owners.get(reply_id)

    def forget(self, owner: _Owner) -> None:
        for reply_id in self._ids.pop(owner, ()):
            self._drop(reply_id, owner)

    def _drop(self, reply_id: ReplyId, owner: _Owner) -> None:
        if self._owners.get(reply_id) == owner:
            del self._owners[reply_id]
