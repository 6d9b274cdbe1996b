"""Whose session it is.

What: two fences between tenants. The cache salt: sessions of different salts never meet, here or in
the engine. The API key: on a server with several keys a session belongs to the first key that used
it, and an event or query by another key is put to the engine under a scope that nobody has, so that
its answer, and the time it takes, are those for a session that does not exist.
Why: ids of sessions can be guessed, and the end of a session gives its KV away.
Where: claimed by the middleware when a request succeeds, asked by the routes. A process knows only
the requests that it served itself: with `--api-server-count` above 1 *and* several keys, events
about sessions that other processes served come back as unknown. No key is kept, only a digest that
means nothing outside this process.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_SESSIONS = 100_000
MAX_REPLIES = 20_000
"""Beyond these, at some 400 bytes each, the one used longest ago is forgotten: it looks unknown to
everyone then, a session until its next request."""

NOBODY = "-"
"""A scope that no cache salt has, and no caller: these are hexadecimal digests or empty."""

ANYONE = ""
"""The caller where keys do not tell callers apart."""


class Name(NamedTuple):
    """A session by its name, or a reply by its id, in its scope."""

    scope: str
    id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Who owns it, and on which of the engines it lives, if the requests said so."""

    caller: str
    rank: int | None


class Callers:
    """Tells callers apart by their API key, where the server has more than one."""

    def __init__(self, num_keys: int) -> None:
        self.are_told_apart = num_keys > 1
        self._secret = secrets.token_bytes(32)

    def caller_of(self, headers: Mapping[str, str]) -> str:
        """Who sent a request that has passed vLLM's check of its key."""
        if not self.are_told_apart:
            return ANYONE
        _, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.blake2b(key.encode("utf-8", "replace"), key=self._secret, digest_size=16)
        return digest.hexdigest()


class Claims:
    """What belongs to whom. A bounded memory; owned by the event loop of the API process."""

    def __init__(self, max_claims: int) -> None:
        self._max_claims = max_claims
        self._claims: OrderedDict[Name, Claim] = OrderedDict()

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, name: Name, caller: str, rank: int | None) -> None:
        """The caller used this name. The first one keeps it, wherever its turns go."""
        held = self._claims.get(name)
        if held is not None and held.caller != caller:
            return
        self._put(name, Claim(caller, held.rank if held is not None and rank is None else rank))

    def claim_alone(self, name: Name, caller: str, rank: int | None) -> bool:
        """As `claim`, but a name that two callers used is nobody's from then on: then False.

        For ids of replies: clients may choose them, and the engine knows the last who used one.
        """
        held = self._claims.get(name)
        is_alone = held is None or held.caller == caller
        self._put(name, Claim(caller if is_alone else NOBODY, rank))
        return is_alone

    def of(self, name: Name) -> Claim | None:
        """The claim on a name, None if there is none (any more)."""
        return self._claims.get(name)

    def _put(self, name: Name, claim: Claim) -> None:
        self._claims[name] = claim
        self._claims.move_to_end(name)
        if len(self._claims) > self._max_claims:
            self._claims.popitem(last=False)
