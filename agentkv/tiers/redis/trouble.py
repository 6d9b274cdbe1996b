"""Why a connection could not be opened, told without secrets.

What: redis-py's exceptions as `Trouble`: a counter's name and a sentence that says what to mend.
Where: `link` and `servers`.
"""

from __future__ import annotations

import ssl

from redis import exceptions

from agentkv.tiers.redis.replies import ErrorReply, Trouble

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)


def error_code(error: Exception) -> str | None:
    """The code of the server's error reply behind an exception; None if there was no such."""
    if isinstance(error, exceptions.AuthenticationError) and "required" in str(error):
        return "NOAUTH"
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, exceptions.ResponseError):
        return str(error).split(" ", 1)[0] or "ERR"
    return None


def connect_trouble(error: Exception) -> Trouble:
    """Why a connection could not be opened."""
    code = error_code(error)
    if code is not None:
        return ErrorReply(code).trouble
    if (tls := _tls_error(error)) is not None:
        why = getattr(tls, "verify_message", None) or getattr(tls, "reason", None)
        return Trouble("tls", f"TLS failed ({why or 'no TLS there'}); compare URL and certificates")
    if "master" in type(error).__name__.lower():
        return Trouble("no_master", "no Sentinel names a master for this service")
    if isinstance(error, exceptions.RedisClusterException):
        return Trouble("cluster_down", "no node tells of a whole cluster")
    if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
        return Trouble("connect", "no answer in time")
    if "closed" in str(error).lower() or "reset" in str(error).lower():
        return Trouble("connect", "it closes connections at once; does it want TLS (rediss://)?")
    if "refused" in str(error).lower():
        return Trouble("connect", "connection refused")
    return Trouble("connect", f"no connection ({type(error).__name__})")


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error that an exception stems from."""
    num_steps = 0
    while error is not None and num_steps < 10:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
        num_steps += 1
    return None
