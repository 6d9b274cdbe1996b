"""Which server holds a key, and the open connections to each.

What: a `Topology` names the servers and opens connections to them, by redis-py: it knows TLS,
logins, Sentinel and clusters. `LinkPool` keeps a few links to one server for the next call.
Why not redis-py's pools: they check and reset connections in ways that would read our bytes.
Where: `calls` asks for links here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from redis import Connection as TcpConnection
from redis import SSLConnection, UnixDomainSocketConnection, cluster, sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentkv.tiers.redis.link import Connection, Link, open_link
from agentkv.tiers.redis.replies import LinkLost, Trouble, lost
from agentkv.tiers.redis.trouble import connect_trouble
from agentkv.tiers.redis.url import Address, RedisAccess, tls_arguments

ONLY_SERVER = ""

# Neither has types.
_cluster: Any = cluster
_sentinel: Any = sentinel


class Topology(Protocol):
    """The servers by name. May block, up to the connect timeouts, and raise `LinkLost`."""

    def server_of(self, key: bytes | None) -> str:
        """Which server holds a key."""

    def servers(self) -> list[str]:
        """All that hold keys."""

    def connection_to(self, server: str) -> Connection:
        """A new connection, not yet open."""

    def refresh(self) -> None:
        """Asks anew who holds what."""

    def close(self) -> None:
        """Closes what it opened itself."""


def topology_of(address: Address, access: RedisAccess, connect_timeout_s: float) -> Topology:
    """Does not connect; raises `ConfigError` for TLS files that cannot serve."""
    arguments: dict[str, Any] = {
        "username": access.username,
        "password": access.password,
        "protocol": 2,
        "socket_timeout": connect_timeout_s,
        "socket_connect_timeout": connect_timeout_s,
    }
    tls = tls_arguments(address, access)
    if address.kind == "unix":
        return _Single(
            UnixDomainSocketConnection, {**arguments, "path": address.path, "db": address.db}
        )
    arguments["socket_keepalive"] = True
    if address.kind == "cluster":
        return Cluster(address, {**arguments, **tls, "ssl": address.is_tls})
    if address.kind == "sentinel":
        return _Sentinels(address, access, {**arguments, **tls, "ssl": address.is_tls})
    host, port = address.hosts[0]
    kind = SSLConnection if address.is_tls else TcpConnection
    return _Single(kind, {**arguments, **tls, "host": host, "port": port, "db": address.db})


class _Single:
    """One server, always the same."""

    def __init__(self, kind: Callable[..., Connection], arguments: dict[str, Any]) -> None:
        self._kind = kind
        self._arguments = arguments

    def server_of(self, key: bytes | None) -> str:
        return ONLY_SERVER

    def servers(self) -> list[str]:
        return [ONLY_SERVER]

    def connection_to(self, server: str) -> Connection:
        return self._kind(retry=Retry(NoBackoff(), 0), **self._arguments)

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Sentinels(_Single):
    """The one that the Sentinels call master at the moment: each connection asks them."""

    def __init__(self, address: Address, access: RedisAccess, arguments: dict[str, Any]) -> None:
        own = {
            name: value for name, value in arguments.items() if name not in ("username", "password")
        }
        own |= {"username": access.sentinel_username, "password": access.sentinel_password}
        # Without this, redis-py asks each of them up to ten times.
        own["retry"] = Retry(NoBackoff(), 0)
        self._sentinel = _sentinel.Sentinel(list(address.hosts), sentinel_kwargs=own)
        client = self._sentinel.master_for(address.service, db=address.db, **arguments)
        self._pool = client.connection_pool
        super().__init__(self._pool.connection_class, {**self._pool.connection_kwargs})
        self._arguments.pop("retry", None)

    def close(self) -> None:
        self._pool.disconnect()
        self._sentinel.close()


class Cluster:
    """The masters of a cluster. Asks for them at the first need."""

    def __init__(self, address: Address, arguments: dict[str, Any]) -> None:
        self._hosts = address.hosts
        self._arguments = arguments
        self._lock = threading.Lock()
        self._client: Any = None
        self._is_closed = False

    def server_of(self, key: bytes | None) -> str:
        client = self._connected()
        try:
            if key is None:
                return self.servers()[0]
            return str(client.nodes_manager.get_node_from_slot(client.keyslot(key)).name)
        except Exception as error:  # As in `open_link`.
            raise LinkLost(connect_trouble(error), is_connect=True) from None

    def servers(self) -> list[str]:
        servers = [str(node.name) for node in self._connected().get_primaries()]
        if not servers:
            raise LinkLost(Trouble("cluster_down", "the cluster is down"), is_connect=True)
        return servers

    def connection_to(self, server: str) -> Connection:
        client = self._connected()
        try:
            node = client.get_node(node_name=server)
            pool = client.get_redis_connection(node).connection_pool
            connection: Connection = pool.connection_class(**pool.connection_kwargs)
        except Exception as error:  # As in `open_link`; the node may be gone by now.
            raise LinkLost(connect_trouble(error), is_connect=True) from None
        return connection

    def refresh(self) -> None:
        client = self._connected()
        try:
            client.nodes_manager.initialize()
        except Exception as error:  # As in `open_link`.
            raise LinkLost(connect_trouble(error), is_connect=True) from None

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            self._is_closed = True
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._is_closed:
                raise lost("closed", "the store is closed")
            if self._client is None:
                nodes = [_cluster.ClusterNode(host, port) for host, port in self._hosts]
                try:
                    self._client = _cluster.RedisCluster(
                        startup_nodes=nodes,
                        require_full_coverage=False,
                        retry=Retry(NoBackoff(), 0),
                        **self._arguments,
                    )
                except Exception as error:  # As in `open_link`.
                    raise LinkLost(connect_trouble(error), is_connect=True) from None
            return self._client


class LinkPool:
    """At most so many links to one server, opened at need. Thread-safe."""

    def __init__(self, connect: Callable[[], Connection], max_links: int, timeout_s: float) -> None:
        self._connect = connect
        self._max_links = max_links
        self._timeout_s = timeout_s
        self._freed = threading.Condition()
        self._idle: list[Link] = []
        self._num_links = 0
        self._is_closed = False

    def take(self, deadline_s: float) -> Link:
        """A link for the caller alone, to be given back or dropped. Blocks; raises `LinkLost`."""
        with self._freed:
            while not self._is_closed and not self._idle and self._num_links >= self._max_links:
                if not self._freed.wait(max(0.0, deadline_s - time.monotonic())):
                    raise lost("links_busy", "all connections are busy")
            if self._is_closed:
                raise lost("closed", "the store is closed")
            if self._idle:
                return self._idle.pop()
            self._num_links += 1
        try:
            return open_link(self._connect(), self._timeout_s, deadline_s)
        except BaseException:
            self._forget()
            raise

    def give_back(self, link: Link) -> None:
        """For a link whose exchange ended well."""
        link.was_used = True
        with self._freed:
            if not self._is_closed:
                self._idle.append(link)
                self._freed.notify()
                return
        self.drop(link)

    def drop(self, link: Link) -> None:
        """For a link whose state is unknown."""
        link.close()
        self._forget()

    def drop_idle(self) -> None:
        """Closes the links that nobody uses: their server has probably gone."""
        with self._freed:
            idle, self._idle = self._idle, []
        for link in idle:
            self.drop(link)

    def close(self) -> None:
        with self._freed:
            self._is_closed = True
            self._freed.notify_all()
        self.drop_idle()

    def _forget(self) -> None:
        with self._freed:
            self._num_links -= 1
            self._freed.notify()
