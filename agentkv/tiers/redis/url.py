"""Where the server is and how to log in.

What: reads the address, checks the TLS files, and says which connection arguments follow.
Why our own reading: one address may name several servers, and an unknown option in it must be
refused, not passed over. Where: `servers` connects to what is named here.

    redis://host[:port][/db]                           one server; also valkey://
    rediss://…                                         the same over TLS; also valkeys://
    unix:///path/to/socket[?db=n]                      a socket on this machine
    redis+sentinel://host[:port],host2[:port]/service[/db]     also sentinel://
    redis+cluster://host[:port],host2[:port]           any nodes of a cluster
    rediss+sentinel://…, rediss+cluster://…            the same over TLS

A cluster is recognised behind redis:// too, by its answers.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from agentkv.errors import ConfigError

_EXAMPLES = "redis://host:6379/0, unix:///path, redis+sentinel://host:26379/service"
_KINDS = {
    "redis": "single",
    "valkey": "single",
    "unix": "unix",
    "redis+sentinel": "sentinel",
    "sentinel": "sentinel",
    "redis+cluster": "cluster",
}
_TLS_SCHEMES = {
    "rediss": "redis",
    "valkeys": "valkey",
    "rediss+sentinel": "redis+sentinel",
    "rediss+cluster": "redis+cluster",
}
_DEFAULT_PORTS = {"sentinel": 26379}


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """How to log in. `sentinel_password` is for the Sentinels themselves, where they want one."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says."""

    kind: str  # "single", "unix", "sentinel" or "cluster"
    is_tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    db: int = 0
    service: str = ""
    path: str = ""

    def as_cluster(self) -> Address:
        """The same server as one node of a cluster."""
        return replace(self, kind="cluster", db=0)

    def __str__(self) -> str:
        """For log lines; without secrets."""
        if self.kind == "unix":
            return self.path
        hosts = ", ".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{hosts} ({self.service})" if self.service else hosts


def parse_address(url: str) -> Address:
    """Raises `ConfigError`, which does not repeat the URL: it might hold a password."""
    try:
        pieces = urlsplit(url)
    except ValueError as error:
        raise ConfigError(
            f"redis url: it cannot be read ({error}); write e.g. {_EXAMPLES}"
        ) from None
    scheme = _TLS_SCHEMES.get(pieces.scheme, pieces.scheme)
    kind = _KINDS.get(scheme)
    if kind is None:
        raise ConfigError(f"redis url: unknown scheme {pieces.scheme!r}; write e.g. {_EXAMPLES}")
    if "@" in pieces.netloc:
        raise ConfigError("redis url: it holds a user or password; give those apart from the URL")
    is_tls = scheme != pieces.scheme
    path = [piece for piece in pieces.path.split("/") if piece]
    if kind == "unix":
        if pieces.netloc or not path:
            raise ConfigError("redis url: write the socket's path as unix:///path/to/socket")
        return Address(kind, False, db=_db(pieces, []), path=pieces.path)
    service = path.pop(0) if kind == "sentinel" and path else ""
    if kind == "sentinel" and not service:
        raise ConfigError("redis url: the service is missing: redis+sentinel://host:26379/service")
    db = _db(pieces, path)
    if kind == "cluster" and db:
        raise ConfigError("redis url: a cluster has only database 0; leave the number out")
    hosts = tuple(_host(text, _DEFAULT_PORTS.get(kind, 6379)) for text in pieces.netloc.split(","))
    if kind == "single" and len(hosts) > 1:
        raise ConfigError("redis url: several hosts; write redis+cluster:// or redis+sentinel://")
    return Address(kind, is_tls, hosts, db, service)


def _db(pieces: SplitResult, path: list[str]) -> int:
    """The database, by the path or by `?db=`."""
    options = parse_qs(pieces.query, keep_blank_values=True)
    if unknown := options.keys() - {"db"}:
        raise ConfigError(f"redis url: unknown option {min(unknown)!r}; only db is known here")
    texts = [*path, *options.get("db", [])]
    if len(texts) > 1 or pieces.fragment:
        raise ConfigError(f"redis url: too much after the host; write e.g. {_EXAMPLES}")
    if texts and not (texts[0].isascii() and texts[0].isdigit()):
        raise ConfigError("redis url: the database must be a number, as in redis://host:6379/0")
    return int(texts[0]) if texts else 0


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        pieces = urlsplit(f"//{text}")
        host, port = pieces.hostname, pieces.port
    except ValueError:
        host = port = None
        text = ""
    if not host or text.endswith(":") or port == 0:
        raise ConfigError(f"redis url: a host or port is missing or wrong; write e.g. {_EXAMPLES}")
    return host, port or default_port


def tls_arguments(address: Address, access: RedisAccess) -> dict[str, Any]:
    """redis-py's arguments for TLS; raises `ConfigError` for files that cannot serve."""
    files = (access.ca_file, access.cert_file, access.key_file)
    if not address.is_tls:
        if any(files):
            raise ConfigError("redis url: TLS files are given, but no TLS; write rediss://")
        return {}
    if access.key_file and not access.cert_file:
        raise ConfigError("redis cert_file: missing, though key_file is given; name both")
    _check_files(access)
    return {
        "ssl_ca_certs": access.ca_file,
        "ssl_certfile": access.cert_file,
        "ssl_keyfile": access.key_file,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
    }


def _check_files(access: RedisAccess) -> None:
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ValueError) as error:
        raise _unreadable("ca_file", access.ca_file, error) from None
    if access.cert_file:
        try:
            context.load_cert_chain(access.cert_file, access.key_file, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise _unreadable("cert_file", access.cert_file, error) from None


def _no_passphrase() -> str:
    """Without this, an encrypted key would ask at the terminal."""
    raise ValueError("the key is encrypted; give one without passphrase")


def _unreadable(name: str, path: str | None, error: Exception) -> ConfigError:
    why = getattr(error, "strerror", None) or error
    return ConfigError(f"redis {name}: {path} cannot be used ({why}); name a readable PEM file")
