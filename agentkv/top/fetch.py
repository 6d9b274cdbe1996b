"""Asks a server how its agentkv is: state and sessions over its API, counters from /metrics.

What: one `Look` is all that is known at one time. What goes wrong is a `Trouble`: one line that
says what, and what to do. Why `/live` first: it has state and sessions in one answer and does not
wake an idle engine for it; a server without it is asked for both. Where: `live` calls it in a
thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from agentkv.doctor.prometheus_text import Samples, parse
from agentkv.errors import AgentKVError
from agentkv.terminal_text import clean, clean_all

MAX_SESSIONS = 1000
_TIMEOUT_S = 5.0
_NO_RECORDS_S = 86_400.0  # So far ahead there is nothing decided yet.
# Of some thousand lines of /metrics these are read; the others would cost the most of a look.
_SHOWN_METRICS = (
    "agentkv:",
    "process_start_time_seconds",
    "vllm:cache_config_info",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:time_to_first_token_seconds_bucket",
)


class Trouble(AgentKVError):
    """The server does not tell what was asked; the text is one line, with what to do."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a server said at one time: `taken_s` on the monotonic clock.

    `age_s`: how long before that the engines were last asked; not while nothing happens in them.
    Strings in `state` and `sessions` are as they came, not clean. `note`: what is missing, and why.
    """

    taken_s: float
    age_s: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    sessions: Sequence[Mapping[str, Any]] = ()
    samples: Samples = field(default_factory=dict)
    note: str = ""


class Source:
    """One server. Looks come from one thread, questions about a session from any."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        salt: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Raises Trouble where the URL is none."""
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        headers |= {"X-Cache-Salt": salt} if salt else {}
        try:
            _check_scheme(self.url)
            self._client = httpx.Client(headers=headers, timeout=_TIMEOUT_S, transport=transport)
        except (httpx.InvalidURL, ValueError) as error:
            raise Trouble(f"{clean(url)}: {clean(str(error))}; write http://HOST:PORT") from None

    def look(self) -> Look:
        """Everything as it is now. Blocks for some seconds at most. Raises Trouble."""
        try:
            samples = self._metrics()
            return self._live(samples) or self._by_parts(samples)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            said = clean(f"{type(error).__name__}: {error}")
            raise Trouble(
                f"{self.url}: no answer ({said}); is the server up, and is this its address?"
            ) from None

    def session(self, session_id: str) -> dict[str, Any]:
        """One session, with `kv_tokens` by tier; empty where it is gone. Raises httpx.HTTPError."""
        answer = self._get(f"sessions/{_quoted(session_id)}")
        found = answer.json() if answer.status_code == httpx.codes.OK else {}
        return dict(clean_all(found)) if isinstance(found, dict) else {}

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its connections."""
        self._client.close()

    def _live(self, samples: Samples) -> Look | None:
        """State and sessions in one; None where the server does not have that."""
        params = {"limit": MAX_SESSIONS, "since": time.time() + _NO_RECORDS_S}
        answer = self._get("live", params)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if note := self._refusal(answer):
            return Look(time.monotonic(), samples=samples, note=note)
        state = _json_object(answer)
        age_s = max(0.0, _number(state.get("now_s")) - _number(state.get("as_of_s")))
        sessions = _objects(state.pop("sessions", None))
        return Look(time.monotonic(), age_s, state, sessions, samples)

    def _by_parts(self, samples: Samples) -> Look:
        state, sessions = self._get("state"), self._get("sessions", {"limit": MAX_SESSIONS})
        if note := self._refusal(state) or self._refusal(sessions):
            return Look(time.monotonic(), samples=samples, note=note)
        rows = _objects(_json_object(sessions).get("sessions"))
        return Look(time.monotonic(), 0.0, _json_object(state), rows, samples)

    def _get(self, what: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        return self._client.get(f"{self.url}/v1/agentkv/{what}", params=params)

    def _metrics(self) -> Samples:
        answer = self._client.get(f"{self.url}/metrics")
        if answer.status_code != httpx.codes.OK:
            return {}
        lines = answer.text.splitlines()
        return parse("\n".join(clean(line) for line in lines if line.startswith(_SHOWN_METRICS)))

    def _refusal(self, answer: httpx.Response) -> str:
        """What is missing where a part of the answer is; empty where all is well.

        Raises Trouble where nothing is to be had.
        """
        status = answer.status_code
        if status == httpx.codes.OK:
            return ""
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise Trouble(f"{self.url}: it wants an API key ({status}); --api-key or VLLM_API_KEY")
        if status == httpx.codes.NOT_FOUND:
            raise Trouble(
                f"{self.url}: it runs without agentkv (404); start it with `agentkv serve`, or"
                " with --kv-connector agentkv"
            )
        said = clean(_message_of(answer)) or answer.reason_phrase
        return f"the engine does not answer ({status}): {said}"


def _check_scheme(url: str) -> None:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("it is no address of a server")


def _json_object(answer: httpx.Response) -> dict[str, Any]:
    """Raises ValueError."""
    value = answer.json()
    if not isinstance(value, dict):
        raise ValueError("the answer is no JSON object")
    return value


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _message_of(answer: httpx.Response) -> str:
    """In vLLM's own shape of an error, else nothing."""
    try:
        error = answer.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return ""


def _quoted(session_id: str) -> str:
    """As a part of a path; a client would take dots for a way up."""
    return quote(session_id, safe="").replace(".", "%2E")
