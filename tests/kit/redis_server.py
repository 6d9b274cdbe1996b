"""Real Redis servers for tests, each in a process of its own that ends with the test.

What: `RedisServer` starts, kills, freezes and restarts one server on a port of its own; `cluster`
and `sentinels` start a few that know each other; `make_certificates` makes what TLS needs.
Why real ones: what a full, frozen, restarted or wrongly configured server answers is what counts.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kit import frozen
from kit.ports import free_port

PROGRAM = shutil.which("redis-server")
_START_TIMEOUT_S = 60.0
_NUM_SLOTS = 16384


@dataclass(frozen=True)
class Certificates:
    """PEM files: a CA and what it signed for 127.0.0.1; `other_ca` signed nothing."""

    ca: Path
    cert: Path
    key: Path
    other_ca: Path


class RedisServer:
    """`settings` are those of redis.conf, for example `maxmemory="20mb"`, with `_` for `-`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = settings
        self.certificates: Certificates | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._args: list[str] = []
        self._password: str | None = settings.get("requirepass")

    @property
    def url(self) -> str:
        scheme = "redis" if self.certificates is None else "rediss"
        return f"{scheme}://127.0.0.1:{self.port}"

    def start(self) -> RedisServer:
        """Returns when it answers."""
        assert PROGRAM is not None, "install redis-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = {"port": str(self.port)}
        if (files := self.certificates) is not None:
            ports = {
                "port": "0",
                "tls-port": str(self.port),
                "tls-cert-file": str(files.cert),
                "tls-key-file": str(files.key),
                "tls-ca-cert-file": str(files.ca),
                "tls-auth-clients": "no",
            }
        own = {"dir": str(self.folder), "save": "", "bind": "127.0.0.1", **ports}
        own["repl-diskless-sync-delay"] = "0"
        settings = own | {name.replace("_", "-"): text for name, text in self.settings.items()}
        lines = [f'{name} "{text}"' for name, text in settings.items()]
        (self.folder / "redis.conf").write_text("\n".join(lines))
        self.run([str(self.folder / "redis.conf"), *self._args])
        return self

    def run(self, args: list[str]) -> None:
        """Starts the process with these arguments; returns when it answers."""
        assert PROGRAM is not None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, *args], stdout=log, stderr=log)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.02)

    def client(self, **options: Any) -> redis.Redis:
        """For looking at it and changing it from the side."""
        if self.certificates is not None:
            options = {"ssl": True, "ssl_ca_certs": str(self.certificates.ca), **options}
        options = {"password": self._password, **options}
        return redis.Redis("127.0.0.1", self.port, socket_timeout=60, protocol=2, **options)

    def kill(self) -> None:
        """As by SIGKILL: nothing is said to anyone."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def freeze(self) -> None:
        """Until `thaw`, connections are taken by the kernel, and nothing is answered."""
        assert self.process is not None
        frozen.freeze(self.process)

    def thaw(self) -> None:
        assert self.process is not None
        frozen.thaw(self.process)

    def _answers(self) -> bool:
        try:
            with contextlib.closing(self.client(socket_connect_timeout=1)) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False


@contextlib.contextmanager
def running(
    folder: Path, certificates: Certificates | None = None, **settings: str
) -> Iterator[RedisServer]:
    """One server, killed at the end."""
    server = RedisServer(folder, **settings)
    server.certificates = certificates
    try:
        yield server.start()
    finally:
        server.kill()


@contextlib.contextmanager
def cluster(
    folder: Path, num_masters: int = 3, *, node_timeout_ms: int = 30_000, **settings: str
) -> Iterator[list[RedisServer]]:
    """Masters that share the slots evenly; one is dead to the others after `node_timeout_ms`."""
    settings = {"cluster_enabled": "yes", "cluster_node_timeout": str(node_timeout_ms), **settings}
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running(folder / str(i), **settings)) for i in range(num_masters)
        ]
        clients = [stack.enter_context(contextlib.closing(server.client())) for server in servers]
        bounds = [_NUM_SLOTS * i // num_masters for i in range(num_masters + 1)]
        for client, start, stop in zip(clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER ADDSLOTSRANGE", start, stop - 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port)
        wait_until(
            lambda: all(
                client.cluster("INFO")["cluster_state"] == "ok"
                and client.cluster("INFO")["cluster_known_nodes"] == str(num_masters)
                for client in clients
            )
        )
        yield servers


@contextlib.contextmanager
def sentinel(
    folder: Path, service: str = "kv", *, down_after_ms: int
) -> Iterator[tuple[RedisServer, RedisServer, int]]:
    """A master, its replica, and the port of a Sentinel that watches them.

    A machine that stands still for `down_after_ms` makes the replica master.
    """
    with running(folder / "a") as master, running(folder / "b") as replica:
        with contextlib.closing(replica.client()) as client:
            client.replicaof("127.0.0.1", master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        watcher = RedisServer(folder / "sentinel")
        watcher.folder.mkdir()
        conf = watcher.folder / "sentinel.conf"
        conf.write_text(
            f"port {watcher.port}\nbind 127.0.0.1\n"
            f"sentinel monitor {service} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {service} {down_after_ms}\n"
            f"sentinel failover-timeout {service} 3000\n"
        )
        try:
            watcher.run([str(conf), "--sentinel"])
            with contextlib.closing(watcher.client()) as client:
                wait_until(
                    lambda: client.execute_command("SENTINEL REPLICAS", service) not in ([], None)
                )
            yield master, replica, watcher.port
        finally:
            watcher.kill()


def wait_until(is_so: Any, timeout_s: float = 60.0) -> None:
    """Waits for something that comes true by itself."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.02)


def make_certificates(folder: Path) -> Certificates:
    """Valid for an hour."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(
        *(folder / name for name in ("ca.pem", "cert.pem", "key.pem", "other.pem"))
    )
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    other_key = ec.generate_private_key(ec.SECP256R1())
    _write(files.ca, _certificate("test CA", ca_key, "test CA", ca_key, is_ca=True))
    _write(files.cert, _certificate("server", key, "test CA", ca_key, is_ca=False))
    _write(files.other_ca, _certificate("other CA", other_key, "other CA", other_key, is_ca=True))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _certificate(
    name: str, key: Any, issuer: str, issuer_key: Any, *, is_ca: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, issuer)
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
