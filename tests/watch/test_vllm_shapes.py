"""The installed vLLM itself writes the replies, and the watchers read them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    FunctionCall,
    ToolCall,
    UsageInfo,
)
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
)
from vllm.entrypoints.openai.responses.protocol import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponsesRequest,
    ResponsesResponse,
)
from vllm.entrypoints.openai.responses.streaming_events import (
    SimpleStreamingEventProcessor,
    split_delta,
)
from vllm.sampling_params import SamplingParams
from watch.golden import (
    BASH,
    CHAT,
    JSON,
    MESSAGES,
    READ,
    RESPONSES,
    SSE,
    call_delta,
    chat_chunk,
    dumps,
    in_pieces,
    watch,
)

from agentkv.watch.turn_end import Call, TurnEnd

CALLS = (BASH, READ)
USAGE = UsageInfo(prompt_tokens=3, completion_tokens=9, total_tokens=12)


def call_piece(index: int, name: str | None, arguments: str) -> DeltaMessage:
    function = DeltaFunctionCall(arguments=arguments)
    if name is None:
        return DeltaMessage(tool_calls=[DeltaToolCall(index=index, function=function)])
    function = DeltaFunctionCall(name=name, arguments=arguments)
    call_id = f"chatcmpl-tool-{index}"
    call = DeltaToolCall(index=index, id=call_id, type="function", function=function)
    return DeltaMessage(tool_calls=[call])


def deltas(calls: Sequence[Call]) -> list[DeltaMessage]:
    found = [DeltaMessage(reasoning="hm"), DeltaMessage(content='Running "tool_calls" é')]
    for index, call in enumerate(calls):
        found.append(call_piece(index, call.tool, ""))
        found += [call_piece(index, None, piece) for piece in in_pieces(call.arguments)]
    return found


def stream_chunk(delta: DeltaMessage, finish_reason: str | None = None, **more: Any) -> str:
    ending: dict[str, Any] = {"stop_reason": None} if finish_reason else {"token_ids": None}
    choice = ChatCompletionResponseStreamChoice(
        index=0, delta=delta, logprobs=None, finish_reason=finish_reason, **ending
    )
    chunk = ChatCompletionStreamResponse(
        id="chatcmpl-abc",
        object="chat.completion.chunk",
        created=1,
        choices=[choice],
        model="m",
        **more,
    )
    return str(chunk.model_dump_json(exclude_unset=True))


def chat_events(calls: Sequence[Call], finish_reason: str) -> list[str]:
    usage = ChatCompletionStreamResponse(
        id="chatcmpl-abc", created=1, choices=[], model="m", usage=USAGE
    )
    datas = [
        stream_chunk(DeltaMessage(role="assistant", content=""), usage=USAGE),
        *map(stream_chunk, deltas(calls)),
        stream_chunk(DeltaMessage(), finish_reason),
        usage.model_dump_json(exclude_unset=True, exclude_none=True),
        "[DONE]",
    ]
    return [f"data: {data}\n\n" for data in datas]


def encoded(events: Sequence[str]) -> list[bytes]:
    return [event.encode() for event in events]


ENDS = pytest.mark.parametrize(
    ("calls", "finish_reason", "expected"),
    [
        (CALLS, "tool_calls", TurnEnd("chatcmpl-abc", CALLS, "tool")),
        ((), "stop", TurnEnd("chatcmpl-abc", (), "human")),
        (CALLS, "length", TurnEnd("chatcmpl-abc", (), "cut")),
        ((), "abort", TurnEnd("chatcmpl-abc", (), "cut")),
    ],
)


@ENDS
def test_a_chat_stream(calls: Sequence[Call], finish_reason: str, expected: TurnEnd) -> None:
    assert watch(CHAT, SSE, encoded(chat_events(calls, finish_reason))) == expected


@ENDS
async def test_a_messages_stream(
    calls: Sequence[Call], finish_reason: str, expected: TurnEnd
) -> None:
    async def chat() -> AsyncIterator[str]:
        for event in chat_events(calls, finish_reason):
            yield event

    events = AnthropicServingMessages.message_stream_converter(None, chat())
    assert watch(MESSAGES, SSE, encoded([event async for event in events])) == expected


def chat_response(calls: Sequence[Call], finish_reason: str) -> ChatCompletionResponse:
    tool_calls = [
        ToolCall(function=FunctionCall(name=call.tool, arguments=call.arguments)) for call in calls
    ]
    message = ChatMessage(role="assistant", content="é", tool_calls=tool_calls)
    choice = ChatCompletionResponseChoice(index=0, message=message, finish_reason=finish_reason)
    return ChatCompletionResponse(
        id="chatcmpl-abc", created=1, model="m", choices=[choice], usage=USAGE
    )


@ENDS
def test_a_chat_body(calls: Sequence[Call], finish_reason: str, expected: TurnEnd) -> None:
    body = json.dumps(chat_response(calls, finish_reason).model_dump())
    assert watch(CHAT, JSON, [body.encode()]) == expected


@ENDS
def test_a_messages_body(calls: Sequence[Call], finish_reason: str, expected: TurnEnd) -> None:
    response = chat_response(calls, finish_reason)
    message = AnthropicServingMessages.messages_full_converter(None, response)
    body = json.dumps(message.model_dump(exclude_none=True))
    found = watch(MESSAGES, JSON, [body.encode()])
    assert found is not None
    assert (found.request_id, found.stop) == (expected.request_id, expected.stop)
    assert [json.loads(call.arguments) for call in found.calls] == [
        json.loads(call.arguments) for call in expected.calls
    ]


def response_of(output: list[Any], status: str) -> ResponsesResponse:
    request = ResponsesRequest(input="x", model="m", request_id="resp_abc")
    return ResponsesResponse.from_request(
        request,
        SamplingParams(),
        model_name="m",
        created_time=1,
        output=output,
        status=status,
        usage=None,
    )


def responses_events(calls: Sequence[Call], status: str) -> list[Any]:
    processor = SimpleStreamingEventProcessor()
    started = response_of([], "in_progress").model_dump(mode="json", by_alias=True)
    found: list[Any] = [
        ResponseCreatedEvent(type="response.created", sequence_number=0, response=started)
    ]
    for delta in (part for whole in deltas(calls) for part in split_delta(whole)):
        state, tool_call = processor.resolve_target_state(delta)
        if processor.needs_transition(state, tool_call):
            found += processor.close_current() + processor.open(state, tool_call)
        found += processor.emit_delta(delta, None)
    found += processor.close_current()
    done = response_of(processor.output_items, status)
    found.append(
        ResponseCompletedEvent(type="response.completed", sequence_number=9, response=done)
    )
    return found


RESPONSES_ENDS = pytest.mark.parametrize(
    ("calls", "status", "expected"),
    [
        (CALLS, "completed", TurnEnd("resp_abc", CALLS, "tool")),
        ((), "completed", TurnEnd("resp_abc", (), "human")),
        (CALLS, "incomplete", TurnEnd("resp_abc", (), "cut")),
    ],
)


@RESPONSES_ENDS
def test_a_responses_stream(calls: Sequence[Call], status: str, expected: TurnEnd) -> None:
    chunks = [
        f"event: {event.type}\ndata: {event.model_dump_json(indent=None, by_alias=True)}\n\n"
        for event in responses_events(calls, status)
    ]
    assert watch(RESPONSES, SSE, encoded(chunks)) == expected


@RESPONSES_ENDS
def test_a_responses_body(calls: Sequence[Call], status: str, expected: TurnEnd) -> None:
    *_, completed = responses_events(calls, status)
    body = json.dumps(completed.response.model_dump(mode="json", by_alias=True))
    assert watch(RESPONSES, JSON, [body.encode()]) == expected


@pytest.mark.parametrize(
    ("by_hand", "by_vllm"),
    [
        (chat_chunk({"content": "é"}), stream_chunk(DeltaMessage(content="é"))),
        (chat_chunk({}, "tool_calls"), stream_chunk(DeltaMessage(), "tool_calls")),
        (
            chat_chunk(call_delta(1, name="bash", arguments="{}")),
            stream_chunk(call_piece(1, "bash", "{}")),
        ),
        (
            chat_chunk(call_delta(1, arguments='{"a"')),
            stream_chunk(call_piece(1, None, '{"a"')),
        ),
    ],
)
def test_the_golden_chunks_are_vllms_own(by_hand: str, by_vllm: str) -> None:
    assert by_hand == dumps(json.loads(by_vllm)) == by_vllm
