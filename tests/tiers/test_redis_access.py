"""Logins, rights and TLS of the Redis tier."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import pytest
from kit.redis_rig import blank, entries, entry, fill, loaded, open_store
from kit.redis_server import Certificates, RedisServer, make_certificates, running, wait_until

_SHORT = {"timeout_s": 0.3, "connect_timeout_s": 0.3, "call_timeout_s": 0.6}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_a_wrong_password_that_becomes_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A73: one warning without secrets, few tries, and no restart once it is mended."""
    with running(tmp_path) as server, contextlib.closing(server.client()) as client:
        client.acl_setuser(
            "kv", enabled=True, passwords=["+right"], keys=["agentkv:*"], categories=["+@all"]
        )
        options = {"username": "kv", "password": "hunter2"}
        with caplog.at_level(logging.DEBUG), open_store(server.url, **options) as store:
            assert not store.is_available and store.state.reason == "wrong_password"
            assert store.store([entry(1)]) == [False]
            time.sleep(0.5)
            warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
            assert len(warnings) == 1 and "password" in warnings[0].getMessage()
            client.acl_setuser("kv", enabled=True, passwords=["+hunter2"])
            wait_until(lambda: store.is_available)
            assert store.store([entry(1)]) == [True]
            assert loaded(store, [1]) == [True]
            client.acl_deluser("kv")
            loaded(store, [1])
            wait_until(lambda: not store.is_available)
            text = caplog.text + repr(store) + repr(store.take_failures()) + repr(vars(store))
            assert "hunter2" not in text


def test_no_password_where_one_is_wanted(tmp_path: Path) -> None:
    """A73: NOAUTH is told as such."""
    with running(tmp_path, requirepass="hunter2") as server:
        with open_store(server.url) as store:
            assert store.state.reason == "no_auth"
        with open_store(server.url, password="hunter2") as store:
            assert store.store([entry(1)]) == [True]


def test_a_user_who_may_only_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as server, contextlib.closing(server.client()) as client:
        with open_store(server.url) as owner:
            owner.store(entries(range(3)))
        client.acl_setuser(
            "reader", enabled=True, nopass=True, keys=["agentkv:*"], categories=["+@read"]
        )
        with open_store(server.url, username="reader", password="x") as store:
            assert store.is_available
            assert loaded(store, range(3)) == [True] * 3
            assert store.store([entry(9)]) == [False]
            assert store.take_failures()["no_permission"] > 0
            assert store.store([entry(9)]) == [False]
            assert store.take_failures() == {}
            assert loaded(store, range(3)) == [True] * 3
        assert sum("may not do this" in line for line in caplog.text.splitlines()) == 1


def test_tls(tmp_path: Path, files: Certificates) -> None:
    """A73: entries of all sizes over TLS; a wrong CA, or none, is told as such."""
    with running(tmp_path, files) as server:
        for num_bytes in (100, 40_000, 3 << 20):
            with open_store(server.url, ca_file=str(files.ca), block_bytes=num_bytes) as store:
                assert store.store(entries(range(5), num_bytes)) == [True] * 5
                assert loaded(store, range(6)) == [True] * 5 + [False]
                store.clear()
        for ca_file in (str(files.other_ca), None):
            with open_store(server.url, ca_file=ca_file) as store:
                assert store.state.reason == "tls"


def test_tls_on_one_side_only(
    tmp_path: Path, files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A73: both ways round the tier is marked down, with one line that names TLS."""
    with running(tmp_path / "tls", files) as server:
        with open_store(server.url.replace("rediss", "redis")) as store:
            assert not store.is_available
            assert store.load([blank(1)]) == [False]
        assert "does it want TLS (rediss://)" in caplog.text
    caplog.clear()
    with running(tmp_path / "plain") as server:
        url = server.url.replace("redis", "rediss")
        # Tried once: what it makes of a greeting of TLS goes by the random bytes in it.
        options = {**_SHORT, "first_retry_s": 60.0, "max_retry_s": 60.0}
        with open_store(url, ca_file=str(files.ca), **options) as store:
            assert not store.is_available
            assert store.load([blank(1)]) == [False]
        assert len([r for r in caplog.records if r.name.startswith("agentkv")]) == 1


def test_a_frozen_tls_server(tmp_path: Path, files: Certificates) -> None:
    with running(tmp_path, files) as server:
        _check_frozen(server, str(files.ca))


def _check_frozen(server: RedisServer, ca_file: str) -> None:
    fill(server.url, range(4), ca_file=ca_file)
    with open_store(server.url, ca_file=ca_file, **_SHORT) as store:
        wait_until(lambda: store.is_available)
        server.freeze()
        try:
            assert loaded(store, range(4)) == [False] * 4
            assert store.store(entries(range(10, 90))) == [False] * 80
        finally:
            server.thaw()
        wait_until(lambda: all(loaded(store, range(4))))
