"""Runs commands on the servers that their keys belong to.

What: groups commands by server, sends each group over one link, and once more where that may help:
after a connection that had gone stale, or when another server turns out to hold the key.
Where: the store, its clearing and its touches run all their commands here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from agentkv.tiers.redis.commands import Command
from agentkv.tiers.redis.options import RedisOptions
from agentkv.tiers.redis.replies import ELSEWHERE, ErrorReply, LinkLost, Mark, Trouble
from agentkv.tiers.redis.servers import LinkPool, topology_of
from agentkv.tiers.redis.url import Address, RedisAccess

_REFRESH_EVERY_S = 0.5


class Calls:
    """Thread-safe. Its calls block until the deadline and raise `LinkLost`."""

    def __init__(self, address: Address, access: RedisAccess, options: RedisOptions) -> None:
        self._address = address
        self._access = access
        self._options = options
        self._lock = threading.Lock()
        self._topology = topology_of(address, access, options.connect_timeout_s)
        self._pools: dict[str, LinkPool] = {}
        self._refreshed_s = 0.0
        self._is_closed = False

    def run(self, commands: Sequence[Command], deadline_s: float) -> None:
        """Sends all and takes their replies. What got none stays `UNANSWERED`."""
        self._run_by_server(commands, deadline_s)
        misdirected = [command for command in commands if _is_misdirected(command)]
        if misdirected and self._find_servers_again(misdirected):
            held_back = [c for c in commands if c.refusal.is_set and c.reply is Mark.UNANSWERED]
            for command in misdirected:
                command.reply = Mark.UNANSWERED
                command.refusal.is_set = False
            self._run_by_server([*misdirected, *held_back], deadline_s)

    def run_on(self, server: str, commands: Sequence[Command], deadline_s: float) -> None:
        """The same on one server."""
        for is_last_try in (False, True):
            pool = self._pool(server)
            link = pool.take(deadline_s)
            was_used = link.was_used
            try:
                link.exchange([c for c in commands if c.reply is Mark.UNANSWERED], deadline_s)
            except LinkLost as error:
                pool.drop(link)
                is_stale = was_used and error.trouble.reason == "connection_lost"
                if is_last_try or not is_stale:
                    raise
                pool.drop_idle()  # They have probably gone stale at the same moment.
            except BaseException:
                pool.drop(link)
                raise
            else:
                pool.give_back(link)
                return

    @property
    def is_sharded(self) -> bool:
        """Whether keys lie on several servers."""
        return self._address.kind == "cluster"

    def servers(self) -> list[str]:
        """All that hold keys."""
        return self._topology.servers()

    def check(self, deadline_s: float) -> Trouble | None:
        """What is wrong with any of the servers; None if they can be used."""
        try:
            self.drop_idle()
            self._topology.refresh()
            for server in self.servers():
                info = Command("CLUSTER", "INFO")  # An error, if it is none or this is not allowed.
                self.run_on(server, [info], deadline_s)
                if isinstance(info.reply, bytes):
                    if b"cluster_state:ok" not in info.reply:
                        return Trouble("cluster_down", "the cluster is down")
                    self._become_cluster()
        except LinkLost as error:
            return error.trouble
        return None

    def drop_idle(self) -> None:
        """Closes the connections that nobody uses."""
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.drop_idle()

    def close(self) -> None:
        """Idempotent; does not wait for calls that run."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()
        self._topology.close()

    def _run_by_server(self, commands: Sequence[Command], deadline_s: float) -> None:
        topology = self._topology
        groups: dict[str, list[Command]] = {}
        for command in commands:
            groups.setdefault(topology.server_of(command.key), []).append(command)
        first_error: LinkLost | None = None
        for server, group in groups.items():
            try:
                self.run_on(server, group, deadline_s)
            except LinkLost as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _pool(self, server: str) -> LinkPool:
        with self._lock:
            pool = self._pools.get(server)
            if pool is None:
                options = self._options
                pool = LinkPool(
                    lambda: self._topology.connection_to(server),
                    options.num_connections,
                    options.timeout_s,
                )
                if self._is_closed:
                    pool.close()
                self._pools[server] = pool
            return pool

    def _find_servers_again(self, misdirected: Sequence[Command]) -> bool:
        """Asks who holds what, unless that was done just now; whether it was worth another try."""
        with self._lock:
            if time.monotonic() - self._refreshed_s < _REFRESH_EVERY_S:
                return False
            self._refreshed_s = time.monotonic()
        if any(_code(command) == "MOVED" for command in misdirected):
            self._become_cluster()
        self._topology.refresh()
        self.drop_idle()
        return True

    def _become_cluster(self) -> None:
        """If the one server that the URL names turns out to be a cluster's."""
        with self._lock:
            if self._address.kind != "single":
                return
            self._address = self._address.as_cluster()
            connect_timeout_s = self._options.connect_timeout_s
            self._topology = topology_of(self._address, self._access, connect_timeout_s)


def _code(command: Command) -> str | None:
    return command.reply.code if isinstance(command.reply, ErrorReply) else None


def _is_misdirected(command: Command) -> bool:
    return isinstance(command.reply, ErrorReply) and command.reply.code in ELSEWHERE
