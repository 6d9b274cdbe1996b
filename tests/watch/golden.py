"""Replies in the shape that vLLM writes, built by hand; test_vllm_shapes compares them with vLLM.

A reply is given as its path, its content type and its chunks: one chunk for each event, which is
how vLLM hands them to the server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.watch.replies import reply_watcher
from agentkv.watch.turn_end import Call, TurnEnd

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
JSON, SSE = "application/json", "text/event-stream; charset=utf-8"

BASH = Call("bash", '{"command": "pytest -q tests/é", "timeout_s": 30}')
READ = Call("Read", '{"file_path": "/a/ü.py"}')
TEXT = ('It says "tool_calls"', ', "finish_reason":"stop"', " and » \u2028 ok\n\ndata: no")


@dataclass(frozen=True)
class Reply:
    """What a server sends, and what is to be seen in it."""

    name: str
    path: str
    content_type: str
    chunks: tuple[bytes, ...]
    expected: TurnEnd | None

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)


def watch(path: str, content_type: str, chunks: Sequence[bytes]) -> TurnEnd | None:
    """How the turn ended, to a watcher that is fed these chunks."""
    watcher = reply_watcher(path, content_type)
    assert watcher is not None
    for chunk in chunks:
        watcher.feed(chunk)
    return watcher.finish()


def dumps(value: object) -> str:
    """JSON as pydantic writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def events(*datas: str) -> tuple[bytes, ...]:
    return tuple(f"data: {data}\n\n".encode() for data in datas)


def named_events(*objects: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(f"event: {o['type']}\ndata: {dumps(o)}\n\n".encode() for o in objects)


def chat_chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> str:
    choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None}
    choice["finish_reason"] = finish_reason
    choice["stop_reason" if finish_reason else "token_ids"] = None
    return dumps(
        {
            "id": "chatcmpl-abc",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
    )


def call_delta(index: int, *, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    """The delta that opens a call, if it has a name, or goes on with it."""
    if name is None:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
    function = {"name": name, "arguments": arguments}
    call = {"id": f"chatcmpl-tool-{index}", "type": "function", "index": index}
    return {"tool_calls": [{**call, "function": function}]}


def in_pieces(text: str, size: int = 7) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def chat_stream(calls: Sequence[Call], finish_reason: str | None) -> tuple[bytes, ...]:
    chunks = [chat_chunk({"role": "assistant", "content": ""})]
    chunks += [chat_chunk({"content": text}) for text in TEXT]
    for index, call in enumerate(calls):
        chunks.append(chat_chunk(call_delta(index, name=call.tool)))
        pieces = in_pieces(call.arguments)
        chunks += [chat_chunk(call_delta(index, arguments=piece)) for piece in pieces]
    if finish_reason is not None:
        chunks.append(chat_chunk({}, finish_reason))
    usage = {"prompt_tokens": 3, "total_tokens": 12, "completion_tokens": 9}
    chunks.append(dumps({"id": "chatcmpl-abc", "choices": [], "usage": usage}))
    return events(*chunks, "[DONE]")


def chat_body(calls: Sequence[Call], finish_reason: str) -> bytes:
    message = {
        "role": "assistant",
        "content": None if calls else "Done » ok",
        "tool_calls": [
            {
                "id": f"chatcmpl-tool-{i}",
                "type": "function",
                "function": {"name": call.tool, "arguments": call.arguments},
            }
            for i, call in enumerate(calls)
        ],
        "reasoning": None,
    }
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "stop_reason": None}
    return dumps({"id": "chatcmpl-abc", "object": "chat.completion", "choices": [choice]}).encode()


def messages_stream(calls: Sequence[Call], stop_reason: str | None) -> tuple[bytes, ...]:
    message = {"id": "chatcmpl-abc", "type": "message", "role": "assistant", "content": []}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    text = {"type": "text", "text": ""}
    found.append({"type": "content_block_start", "content_block": text, "index": 0})
    for piece in TEXT:
        delta = {"type": "text_delta", "text": piece}
        found.append({"type": "content_block_delta", "delta": delta, "index": 0})
    found.append({"type": "content_block_stop", "index": 0})
    for index, call in enumerate(calls, 1):
        block = {"type": "tool_use", "id": f"tool-{index}", "name": call.tool, "input": {}}
        found.append({"type": "content_block_start", "content_block": block, "index": index})
        for piece in in_pieces(call.arguments):
            delta = {"type": "input_json_delta", "partial_json": piece}
            found.append({"type": "content_block_delta", "delta": delta, "index": index})
        found.append({"type": "content_block_stop", "index": index})
    usage = {"input_tokens": 3, "output_tokens": 9}
    end = {"stop_reason": stop_reason, "stop_sequence": None}
    found.append({"type": "message_delta", "delta": end, "usage": usage})
    found.append({"type": "message_stop"})
    return named_events(*found)


def messages_body(calls: Sequence[Call], stop_reason: str | None) -> bytes:
    content: list[dict[str, Any]] = [{"type": "text", "text": "Done » ok"}]
    content += [
        {"type": "tool_use", "id": "t", "name": call.tool, "input": json.loads(call.arguments)}
        for call in calls
    ]
    body = {"id": "chatcmpl-abc", "type": "message", "role": "assistant", "content": content}
    return dumps({**body, "model": "m", "stop_reason": stop_reason}).encode()


def output_item(call: Call) -> dict[str, Any]:
    item = {"arguments": call.arguments, "call_id": "c", "name": call.tool, "id": "fc_1"}
    return {**item, "type": "function_call", "status": "completed"}


def response_object(output: Sequence[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": "resp_abc", "created_at": 1, "output": list(output), "status": status}


def responses_stream(items: Sequence[dict[str, Any]], status: str) -> tuple[bytes, ...]:
    started = response_object((), "in_progress")
    found: list[dict[str, Any]] = [
        {"response": started, "sequence_number": 0, "type": "response.created"},
        {"response": started, "sequence_number": 1, "type": "response.in_progress"},
    ]
    found += [{"delta": piece, "type": "response.output_text.delta"} for piece in TEXT]
    text = {"text": "".join(TEXT), "type": "output_text"}
    message = {"id": "msg_1", "content": [text], "type": "message", "status": "completed"}
    found.append({"item": message, "output_index": 0, "type": "response.output_item.done"})
    for index, item in enumerate(items, 1):
        begun = {**item, "arguments": "", "status": "in_progress"}
        found.append({"item": begun, "output_index": index, "type": "response.output_item.added"})
        for piece in in_pieces(str(item.get("arguments", ""))):
            kind = "response.function_call_arguments.delta"
            found.append({"delta": piece, "output_index": index, "type": kind})
        found.append({"item": item, "output_index": index, "type": "response.output_item.done"})
    done = response_object([message, *items], status)
    found.append({"response": done, "sequence_number": 9, "type": "response.completed"})
    return named_events(*found)


def responses_body(items: Sequence[dict[str, Any]], status: str) -> bytes:
    return dumps(response_object(items, status)).encode()


def _chat(request_id: str = "chatcmpl-abc", *calls: Call, stop: Any = "tool") -> TurnEnd:
    return TurnEnd(request_id, calls, stop)


_BOTH = _chat("chatcmpl-abc", BASH, READ)
_HUMAN, _CUT = _chat(stop="human"), _chat(stop="cut")
_ITEMS = [output_item(BASH), output_item(READ)]
_IN_JSON = tuple(Call(c.tool, json.dumps(json.loads(c.arguments))) for c in (BASH, READ))

REPLIES = (
    Reply("chat stream, two calls", CHAT, SSE, chat_stream((BASH, READ), "tool_calls"), _BOTH),
    Reply("chat stream, forced call", CHAT, SSE, chat_stream((BASH, READ), "stop"), _BOTH),
    Reply("chat stream, text", CHAT, SSE, chat_stream((), "stop"), _HUMAN),
    Reply("chat stream, length", CHAT, SSE, chat_stream((BASH,), "length"), _CUT),
    Reply("chat stream, abort", CHAT, SSE, chat_stream((), "abort"), _CUT),
    Reply("chat stream, never finished", CHAT, SSE, chat_stream((BASH,), None), _CUT),
    Reply("chat body, two calls", CHAT, JSON, (chat_body((BASH, READ), "tool_calls"),), _BOTH),
    Reply("chat body, text", CHAT, JSON, (chat_body((), "stop"),), _HUMAN),
    Reply("chat body, length", CHAT, JSON, (chat_body((BASH,), "length"),), _CUT),
    Reply(
        "messages stream, two calls",
        MESSAGES,
        SSE,
        messages_stream((BASH, READ), "tool_use"),
        _BOTH,
    ),
    Reply("messages stream, text", MESSAGES, SSE, messages_stream((), "end_turn"), _HUMAN),
    Reply("messages stream, cut call", MESSAGES, SSE, messages_stream((BASH,), "max_tokens"), _CUT),
    Reply(
        "messages stream, stop in call",
        MESSAGES,
        SSE,
        messages_stream((BASH,), "stop_sequence"),
        _CUT,
    ),
    Reply("messages stream, aborted", MESSAGES, SSE, messages_stream((), None), _CUT),
    Reply(
        "messages body, two calls",
        MESSAGES,
        JSON,
        (messages_body((BASH, READ), "tool_use"),),
        TurnEnd("chatcmpl-abc", _IN_JSON, "tool"),
    ),
    Reply("messages body, text", MESSAGES, JSON, (messages_body((), "end_turn"),), _HUMAN),
    Reply("messages body, length", MESSAGES, JSON, (messages_body((), "max_tokens"),), _CUT),
    Reply(
        "responses stream, two calls",
        RESPONSES,
        SSE,
        responses_stream(_ITEMS, "completed"),
        _chat("resp_abc", BASH, READ),
    ),
    Reply(
        "responses stream, text",
        RESPONSES,
        SSE,
        responses_stream((), "completed"),
        _chat("resp_abc", stop="human"),
    ),
    Reply(
        "responses stream, incomplete",
        RESPONSES,
        SSE,
        responses_stream(_ITEMS, "incomplete"),
        _chat("resp_abc", stop="cut"),
    ),
    Reply(
        "responses body, two calls",
        RESPONSES,
        JSON,
        (responses_body(_ITEMS, "completed"),),
        _chat("resp_abc", BASH, READ),
    ),
    Reply(
        "responses body, failed",
        RESPONSES,
        JSON,
        (responses_body((), "failed"),),
        _chat("resp_abc", stop="cut"),
    ),
    Reply("responses body, background", RESPONSES, JSON, (responses_body((), "queued"),), None),
)
STREAMS = tuple(reply for reply in REPLIES if reply.content_type == SSE)
