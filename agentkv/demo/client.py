"""One streamed chat request, timed at the first token, with the tags that agentkv reads.

Used by the ratio rounds and by the replay, so that both measure with the same clock and code.
Why the replay asks for token ids: text can hide a changed token, ids cannot. The ratio rounds do
not: the ids of the long prompt come along and would lengthen every time to the first token.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentkv.demo.forced_answers import ForcedAnswer
from agentkv.errors import AgentKVError

Message = Mapping[str, str]
MODEL_NAME = "demo"


class RequestError(AgentKVError):
    """The server refused a request or ended the stream early."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request: the whole prompt as messages, and the tags for the pause that follows it.

    Without a session id it is what any OpenAI client would send. An answer that is not `forced` has
    `max_tokens` tokens.
    """

    session_id: str | None
    messages: Sequence[Message]
    max_tokens: int
    tags: Mapping[str, Any] = field(default_factory=dict)
    with_token_ids: bool = False
    model: str = MODEL_NAME
    forced: ForcedAnswer | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body: greedy, an answer of known length, usage at the end of the stream."""
        length = {"max_tokens": self.max_tokens, "ignore_eos": True}
        return {
            "model": self.model,
            "messages": list(self.messages),
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": self.with_token_ids,
            **(length if self.forced is None else self.forced.fields()),
            **({"kv_transfer_params": {"agentkv": dict(self.tags)}} if self.tags else {}),
        }

    def headers(self) -> dict[str, str]:
        """The session, in vLLM's own header."""
        return {} if self.session_id is None else {"X-Session-ID": self.session_id}


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one request gave: times in seconds, tokens as counted by the server.

    `token_ids` is empty unless the request asked for them; `reply_id` is the server's. `gaps_s`:
    between one chunk with a token and the next.
    """

    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str
    token_ids: tuple[int, ...] = ()
    reply_id: str = ""
    gaps_s: tuple[float, ...] = ()

    def same_answer(self, other: "TurnResult") -> bool:
        """Whether both answers are the same, by token ids where asked for, and by text."""
        return self.token_ids == other.token_ids and self.text == other.text


class _Stream:
    """Collects the events of one answer; the clock starts when it is made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._ttft_s: float | None = None
        self._gaps_s: list[float] = []
        self._last_s = self._begin
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._usage: dict[str, Any] = {}
        self._reply_id = ""

    def feed(self, line: str) -> None:
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise RequestError(f"the server sent an error: {event['error']}")
        self._usage = event.get("usage") or self._usage
        self._reply_id = event.get("id") or self._reply_id
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            # The chunk that names the role carries no token; a token may have no text yet.
            if "role" not in delta:
                self._note_token(time.perf_counter())
            self._text.append(delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                self._text.append((call.get("function") or {}).get("arguments") or "")
            self._token_ids.extend(choice.get("token_ids") or ())

    def _note_token(self, now_s: float) -> None:
        if self._ttft_s is None:
            self._ttft_s = now_s - self._begin
        else:
            self._gaps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def result(self) -> TurnResult:
        if self._ttft_s is None or not self._usage:
            raise RequestError("the stream ended without a token or without its usage")
        details = self._usage.get("prompt_tokens_details") or {}
        return TurnResult(
            ttft_s=self._ttft_s,
            total_s=time.perf_counter() - self._begin,
            prompt_tokens=self._usage["prompt_tokens"],
            cached_tokens=details.get("cached_tokens") or 0,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            reply_id=self._reply_id,
            gaps_s=tuple(self._gaps_s),
        )


def send(client: httpx.Client, request: TurnRequest) -> TurnResult:
    """Sends one request, blocks until its stream ends. Raises RequestError or httpx.HTTPError."""
    stream = _Stream()
    with client.stream(
        "POST", "/v1/chat/completions", json=request.body(), headers=request.headers()
    ) as response:
        if not response.is_success:
            raise RequestError(_refusal(response.status_code, response.read()))
        for line in response.iter_lines():
            stream.feed(line)
    return stream.result()


async def send_async(client: httpx.AsyncClient, request: TurnRequest) -> TurnResult:
    """`send` for many sessions in one event loop."""
    stream = _Stream()
    async with client.stream(
        "POST", "/v1/chat/completions", json=request.body(), headers=request.headers()
    ) as response:
        if not response.is_success:
            raise RequestError(_refusal(response.status_code, await response.aread()))
        async for line in response.aiter_lines():
            stream.feed(line)
    return stream.result()


def _refusal(status: int, content: bytes) -> str:
    return f"the server answered {status}: {content[:500].decode('utf-8', 'replace')}"
