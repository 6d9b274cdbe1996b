"""The list of namespaces on a server, so that a miss can be explained.

What: writes the own namespace's fields, reads those of others. Why with a lifetime: a namespace
that nobody uses any more goes with its entries. Where: the store calls it now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentkv.tiers.namespace import Namespace
from agentkv.tiers.redis.commands import Command
from agentkv.tiers.redis.values import NAMESPACES_KEY, manifest_key

_MAX_NAMESPACES = 64

Run = Callable[[Sequence[Command]], None]


def announcement(namespace: Namespace, ttl_ms: int) -> list[Command]:
    """The commands that put a namespace on the list."""
    digest = namespace.digest
    key = manifest_key(digest)
    return [
        Command("SET", key, namespace.manifest, "PX", ttl_ms, key=key),
        Command("SADD", NAMESPACES_KEY, digest, key=NAMESPACES_KEY),
    ]


def namespaces_listed(own: Namespace, run: Run) -> list[Namespace]:
    """The others on the list, some of them if there are many; takes those off that have gone."""
    members = Command("SRANDMEMBER", NAMESPACES_KEY, _MAX_NAMESPACES, key=NAMESPACES_KEY)
    run([members])
    digests = members.reply if isinstance(members.reply, list) else []
    reads: dict[str, Command] = {}
    for raw in digests:
        digest = raw.decode("ascii", "replace") if isinstance(raw, bytes) else ""
        if digest and digest != own.digest:
            key = manifest_key(digest)
            reads[digest] = Command("GET", key, key=key)
    run(list(reads.values()))
    gone = [digest for digest, read in reads.items() if read.reply is None]
    if gone:
        run([Command("SREM", NAMESPACES_KEY, *gone, key=NAMESPACES_KEY)])
    found = [Namespace.from_manifest(r.reply) for r in reads.values() if isinstance(r.reply, bytes)]
    return [namespace for namespace in found if namespace is not None]
