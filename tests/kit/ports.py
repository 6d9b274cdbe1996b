"""Ports for servers that are told theirs, and that come back to the same one after a kill.

Below those that Linux gives to connections by itself (from 32768 on): else a connection somewhere
may have the port before the server has, or after it was killed; and a client that tries to reach a
server that is away may be connected with itself. Each of xdist's workers has a part of its own.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

_FIRST, _PER_WORKER, _NUM_WORKERS = 10_000, 1_500, 8
_BUS_OFFSET = 10_000  # Where a node of a Redis cluster listens, too: up to 31,999.


def free_port() -> int:
    """A port that nobody listens to, nor to the one 10,000 above; never the same one twice."""
    return next(port for port in _ports if _is_free(port) and _is_free(port + _BUS_OFFSET))


def _endless() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _NUM_WORKERS
    first = _FIRST + worker * _PER_WORKER
    # Another run of the tests beside this one begins elsewhere.
    number = random.SystemRandom().randrange(_PER_WORKER)
    while True:
        yield first + number % _PER_WORKER
        number += 1


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ports = _endless()
