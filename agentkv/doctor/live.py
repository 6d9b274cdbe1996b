"""A running server: what its own numbers say is wrong, in plain words.

What: `GET /v1/agentkv/state`, `/v1/agentkv/sessions` and `/metrics`; the last of them twice, so
that what happens now can be held against the time since the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from agentkv.doctor import prometheus_text as prometheus
from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.doctor.live_rules import Look, live_rules

_TIMEOUT_S = 10.0
_BETWEEN_S = 3.0
_MAX_SESSIONS = 1000


def live_checks(
    url: str,
    api_key: str | None,
    *,
    transport: httpx.BaseTransport | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Check]:
    """One server. Never raises for what the server does: that is the answer."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(headers=headers, timeout=_TIMEOUT_S, transport=transport) as client:
            yield from _look(client, base, wait)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        said = f"{url}: no answer ({type(error).__name__}: {error})"
        yield fail("server", said, "is the server up, and is this its address?")


def _look(client: httpx.Client, base: str, wait: Callable[[float], None]) -> Iterator[Check]:
    before = prometheus.parse(_text(client, f"{base}/metrics"))
    answer = client.get(f"{base}/v1/agentkv/state")
    yield _server_check(answer)
    state = answer.json() if answer.status_code == httpx.codes.OK else {}
    wait(_BETWEEN_S)
    after = prometheus.parse(_text(client, f"{base}/metrics"))
    if not any(name.startswith("agentkv:") for name in after):
        mend = "requests have to come first; and look for a line `agentkv: policy` in its log"
        yield warn("metrics", "/metrics shows nothing of agentkv's", mend)
    yield from live_rules(Look(before, after, state, _sessions(client, base)))


def _server_check(answer: httpx.Response) -> Check:
    if answer.status_code == httpx.codes.OK:
        engines = len(answer.json().get("engines", ()))
        return ok("server", f"agentkv answers, {engines} engine{'s' if engines != 1 else ''}")
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return fail("server", "it wants an API key", "--api-key, or VLLM_API_KEY")
    if answer.status_code == httpx.codes.NOT_FOUND:
        mend = "start it with `agentkv serve`, or with --kv-connector agentkv"
        return fail("server", "it runs without agentkv", mend)
    said = f"its engine does not answer ({answer.status_code})"
    mend = "no --disable-log-stats, and one API process: the engine answers in vLLM's statistics"
    return warn("server", said, mend)


def _text(client: httpx.Client, url: str) -> str:
    answer = client.get(url)
    return answer.text if answer.status_code == httpx.codes.OK else ""


def _sessions(client: httpx.Client, base: str) -> list[dict[str, Any]]:
    """The caller's; with keys that tell callers apart these are not all."""
    answer = client.get(f"{base}/v1/agentkv/sessions", params={"limit": _MAX_SESSIONS})
    if answer.status_code != httpx.codes.OK:
        return []
    found = answer.json().get("sessions", [])
    return [each for each in found if isinstance(each, dict)]
