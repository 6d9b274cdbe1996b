"""Where `agentkv explain` gets a session's ledger from: a file, or a running server."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from agentkv.errors import ConfigError
from agentkv.signals import MAX_LEDGER_RECORDS

Record = dict[str, Any]

DEFAULT_URL = "http://localhost:8000"
MAX_NAMES_SHOWN = 8
_TIMEOUT_S = 10.0
_GET_ONE = (
    "a ledger is kept where ledger.path is set (agentkv serve --agentkv-config); --ledger FILE "
    "reads it, --url reads what a running server has in memory"
)


def read_ledger(path: Path, session: str) -> list[Record]:
    """The session's records, in order. Lines that are broken or unfinished are passed over.

    Raises ConfigError: the file cannot be read, or it does not know the session.
    """
    needle = json.dumps(session).encode()
    try:
        records = [
            record for record in _records(path, needle) if record.get("session_id") == session
        ]
        if not records:
            names = _names(path)
            raise ConfigError(
                f"--ledger {path}: knows no session {session!r}; {_known(session, names)}"
            )
    except OSError as error:
        raise ConfigError(f"--ledger {path}: {error.strerror}; {_GET_ONE}") from None
    return records


def fetch_ledger(
    session: str, *, url: str, api_key: str | None, cache_salt: str | None
) -> list[Record]:
    """The session's newest records in a server's memory, in order. Raises ConfigError."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if cache_salt:
        headers["X-Cache-Salt"] = cache_salt
    try:
        with httpx.Client(headers=headers, timeout=_TIMEOUT_S) as client:
            return _ask(client, f"{base}/v1/agentkv", session)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(
            f"--url {url}: no answer ({type(error).__name__}: {error}); {_GET_ONE}"
        ) from None


def _ask(client: httpx.Client, api: str, session: str) -> list[Record]:
    params = {"limit": MAX_LEDGER_RECORDS}
    response = client.get(f"{api}/ledger/{_quoted(session)}", params=params)
    if response.status_code == httpx.codes.OK:
        return _rows(response, "records")
    error = _error_of(response)
    if response.status_code != httpx.codes.NOT_FOUND:
        hint = "; give --api-key, or set VLLM_API_KEY" if response.status_code == 401 else ""
        raise ConfigError(f"{api}: {response.status_code} {error}{hint}")
    listed = client.get(f"{api}/sessions")
    if listed.status_code != httpx.codes.OK:
        raise ConfigError(f"{api}: {error}; does the server run with agentkv? {_GET_ONE}")
    names = [str(each.get("session_id")) for each in _rows(listed, "sessions")]
    raise ConfigError(
        f"{api}: knows no session {session!r}, or it is not yours (--cache-salt, --api-key); "
        + _known(session, names)
    )


def _rows(response: httpx.Response, name: str) -> list[Record]:
    """The objects of a list in a reply. Raises ValueError where there is none."""
    value = response.json()
    rows = value.get(name) if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"the reply has no {name}")
    return [row for row in rows if isinstance(row, dict)]


def _records(path: Path, needle: bytes | None = None) -> Iterator[Record]:
    """One a line; only lines with `needle`, since a ledger may have gigabytes."""
    with path.open("rb") as file:
        for line in file:
            if needle is not None and needle not in line:
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _names(path: Path) -> list[str]:
    """All sessions of a ledger, the newest first."""
    names: dict[str, None] = {}
    for record in _records(path):
        name = record.get("session_id")
        if isinstance(name, str):
            names.pop(name, None)
            names[name] = None
    return list(reversed(names))


def _known(session: str, names: list[str]) -> str:
    """What to ask for instead: the most alike, then the newest."""
    if not names:
        return f"it knows none; {_GET_ONE}"
    alike = difflib.get_close_matches(session, names[:10_000], MAX_NAMES_SHOWN // 2)
    shown = list(dict.fromkeys([*alike, *names]))[:MAX_NAMES_SHOWN]
    count = "the only one is" if len(names) == 1 else f"of {len(names):,}, some are"
    return f"{count} {', '.join(shown)}"


def _quoted(session: str) -> str:
    """As a part of a path; a client would take dots for a way up."""
    return quote(session, safe="").replace(".", "%2E")


def _error_of(response: httpx.Response) -> str:
    try:
        value = response.json()
        error = value["error"] if "error" in value else value["detail"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
