"""Every reply is understood however its bytes are cut, and none can do harm."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch.golden import (
    BASH,
    CHAT,
    COMPLETIONS,
    JSON,
    MESSAGES,
    READ,
    REPLIES,
    RESPONSES,
    SSE,
    STREAMS,
    Reply,
    call_delta,
    chat_body,
    chat_chunk,
    chat_stream,
    dumps,
    events,
    named_events,
    output_item,
    responses_stream,
    watch,
)

from agentkv.watch.replies import MAX_KEPT_BYTES, reply_watcher
from agentkv.watch.turn_end import Call, TurnEnd

each_reply = pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.name)
each_stream = pytest.mark.parametrize("reply", STREAMS, ids=lambda reply: reply.name)


@each_reply
def test_a_reply_as_vllm_sends_it(reply: Reply) -> None:
    assert watch(reply.path, reply.content_type, reply.chunks) == reply.expected


@each_reply
def test_one_byte_at_a_time(reply: Reply) -> None:
    single = [bytes([byte]) for byte in reply.data]
    assert watch(reply.path, reply.content_type, single) == reply.expected


@each_reply
def test_cut_in_two_anywhere(reply: Reply) -> None:
    for at in range(len(reply.data)):
        halves = (reply.data[:at], reply.data[at:])
        assert watch(reply.path, reply.content_type, halves) == reply.expected, at


@given(reply=st.sampled_from(REPLIES), data=st.data())
def test_cut_in_any_chunks(reply: Reply, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(reply.data)), max_size=40))
    borders = [0, *sorted(cuts), len(reply.data)]
    chunks = [reply.data[start:end] for start, end in pairwise(borders)]
    assert watch(reply.path, reply.content_type, chunks) == reply.expected


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
@each_stream
def test_other_line_ends_cut_anywhere(reply: Reply, line_end: bytes) -> None:
    stream = reply.data.replace(b"\n", line_end)
    for size in (1, 2, 3, 50, len(stream)):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert watch(reply.path, SSE, chunks) == reply.expected, size


@each_stream
def test_a_stream_that_breaks_off_is_cut_and_never_taken_for_more(reply: Reply) -> None:
    request_id = reply.expected.request_id if reply.expected else None
    for end in range(len(reply.data)):
        found = watch(reply.path, SSE, [reply.data[:end]])
        assert found in (None, TurnEnd(request_id, (), "cut"), reply.expected), end


@each_stream
def test_keep_alive_comments_do_not_matter(reply: Reply) -> None:
    chunks = [part for chunk in reply.chunks for part in (b": keep-alive\n\n", chunk)]
    assert watch(reply.path, SSE, chunks) == reply.expected


def test_data_of_several_lines_is_one_event() -> None:
    reply = chat_stream((BASH,), "tool_calls")
    broken = [chunk.replace(b'"created":', b'\ndata: "created":') for chunk in reply]
    assert broken != list(reply)
    assert watch(CHAT, SSE, broken) == TurnEnd("chatcmpl-abc", (BASH,), "tool")


def test_pieces_of_parallel_calls_may_mix() -> None:
    deltas = [
        call_delta(0, name="bash"),
        call_delta(1, name="Read"),
        call_delta(1, arguments='{"file_path": '),
        call_delta(0, arguments='{"command": "ls"}'),
        call_delta(1, arguments='"/a"}'),
    ]
    found = watch(
        CHAT, SSE, events(*map(chat_chunk, deltas), chat_chunk({}, "tool_calls"), "[DONE]")
    )
    calls = (Call("bash", '{"command": "ls"}'), Call("Read", '{"file_path": "/a"}'))
    assert found == TurnEnd("chatcmpl-abc", calls, "tool")


def test_calls_are_in_the_order_of_their_index() -> None:
    second, first = call_delta(1, name="b"), call_delta(0, name="a")
    chunks = [chat_chunk(second), chat_chunk({}, "tool_calls"), chat_chunk(first)]
    calls = (Call("a", ""), Call("b", ""))
    assert watch(CHAT, SSE, events(*chunks)) == TurnEnd("chatcmpl-abc", calls, "tool")


def test_the_last_piece_may_come_with_the_finish_reason() -> None:
    last = call_delta(0, name="bash", arguments="{}")
    found = watch(CHAT, SSE, events(chat_chunk({}), chat_chunk(last, "tool_calls")))
    assert found == TurnEnd("chatcmpl-abc", (Call("bash", "{}"),), "tool")


def test_only_the_first_of_several_choices_counts() -> None:
    chunks = [
        chat_chunk(call_delta(0, name="rm", arguments="{}"), index=1),
        chat_chunk({}, "tool_calls", index=1),
        chat_chunk({}, "stop", index=0),
    ]
    assert watch(CHAT, SSE, events(*chunks)) == TurnEnd("chatcmpl-abc", (), "human")


def test_completions_end_a_turn_without_calls() -> None:
    choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": None}
    begun = dumps({"id": "cmpl-abc", "choices": [choice]})
    ended = dumps({"id": "cmpl-abc", "choices": [{**choice, "finish_reason": "stop"}]})
    expected = TurnEnd("cmpl-abc", (), "human")
    assert watch(COMPLETIONS, SSE, events(begun, begun, ended, "[DONE]")) == expected
    assert watch(COMPLETIONS, JSON, [ended.encode()]) == expected


@pytest.mark.parametrize("num_good", [0, 1, 4])
def test_an_error_in_a_stream_cuts_the_turn(num_good: int) -> None:
    error = dumps({"error": {"message": "Internal server error", "code": 500}})
    chunks = (*chat_stream((BASH,), "tool_calls")[:num_good], *events(error, "[DONE]"))
    request_id = "chatcmpl-abc" if num_good else None
    assert watch(CHAT, SSE, chunks) == TurnEnd(request_id, (), "cut")


def test_an_error_in_a_messages_stream_cuts_the_turn() -> None:
    message = {"type": "message_start", "message": {"id": "chatcmpl-abc"}}
    error = {"type": "error", "error": {"type": "internal_error", "message": "x"}}
    expected = TurnEnd("chatcmpl-abc", (), "cut")
    assert watch(MESSAGES, SSE, named_events(message, error)) == expected


def test_an_error_body_is_a_cut_turn_of_no_request() -> None:
    body = dumps({"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    assert watch(CHAT, JSON, [body.encode()]) == TurnEnd(None, (), "cut")


def test_tools_that_the_server_runs_are_no_calls_to_wait_for() -> None:
    items = [
        {"type": "mcp_call", "name": "browse", "arguments": "{}", "server_label": "x"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "code_interpreter_call", "code": "1", "status": "completed"},
    ]
    found = watch(RESPONSES, SSE, responses_stream(items, "completed"))
    assert found == TurnEnd("resp_abc", (), "human")


def test_a_custom_tool_gets_its_text_as_it_is() -> None:
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch\n"}
    found = watch(RESPONSES, SSE, responses_stream([item], "completed"))
    assert found == TurnEnd("resp_abc", (Call("apply_patch", "*** Begin Patch\n"),), "tool")


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/v1/models", JSON),
        ("/v1/chat/completions/render", JSON),
        ("/v1/chat/completions/batch", JSON),
        ("/v1/messages/count_tokens", JSON),
        ("/v1/responses/resp_abc", JSON),
        (CHAT, "text/html"),
        (CHAT, ""),
    ],
)
def test_other_replies_are_not_watched(path: str, content_type: str) -> None:
    assert reply_watcher(path, content_type) is None


def test_a_root_path_and_the_case_of_the_type_do_not_matter() -> None:
    found = watch("/team-a" + CHAT, "Application/JSON; charset=utf-8", [chat_body((), "stop")])
    assert found == TurnEnd("chatcmpl-abc", (), "human")


def test_nothing_is_known_of_a_reply_without_a_byte() -> None:
    assert watch(CHAT, SSE, []) is None
    assert watch(CHAT, JSON, []) is None


def test_events_of_mere_text_are_passed_over_unread() -> None:
    begun, *rest = chat_stream((BASH,), "tool_calls")
    unreadable = b'data: {"choices": [{"delta": {"content": "hi"}\n\n'
    found = watch(CHAT, SSE, [begun, unreadable, unreadable[:20], unreadable[20:], *rest])
    assert found == TurnEnd("chatcmpl-abc", (BASH,), "tool")


@pytest.mark.parametrize(
    "bad",
    [
        b"data: nonsense\n\n",
        b'data: {"choices": [{"delta": {"tool_calls": [}]}\n\n',
        b'data: {"tool_calls": ' + b"[" * 100_000 + b"\n\n",
        b'data: "tool_calls"\n\n',
        b'data: {"type": "content_block_delta", "index": [], "tool_use": 0, "tool_calls": 0}\n\n',
        b"data: \xff\xfe" + b'"tool_calls"\n\n',
        b"\x00" * 1000,
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_bad_events_do_not_raise(path: str, bad: bytes) -> None:
    for chunks in ([bad], [b'data: {"id": "x"}\n\n', bad], [bad] * 3):
        assert watch(path, SSE, chunks) in (None, TurnEnd(None, (), "cut"), TurnEnd("x", (), "cut"))
        assert watch(path, JSON, chunks) == TurnEnd(None, (), "cut")


_KEYS = (
    *("id", "type", "index", "choices", "delta", "tool_calls", "function", "name", "arguments"),
    *("finish_reason", "message", "response", "item", "output", "status", "content_block"),
    *("stop_reason", "content", "input"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    path=st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]),
    objects=st.lists(st.dictionaries(st.sampled_from(["id", "choices", "type"]), json_values)),
    kind=st.sampled_from(["response.output_item.done", "content_block_start", "message_start"]),
    values=st.lists(json_values, max_size=5),
)
def test_objects_of_any_shape_do_not_raise(
    path: str, objects: list[dict[str, object]], kind: str, values: list[object]
) -> None:
    shaped = [
        {"type": kind, "item": v, "content_block": v, "index": v, "message": v, "choices": [v]}
        for v in values
    ]
    datas = [f'{dumps(o)[:-1]}{"," if o else ""}"tool_calls":0,"tool_use":0}}' for o in objects]
    chunks = [
        data.encode(errors="replace") for data in map(str, datas + [dumps(s) for s in shaped])
    ]
    watch(path, SSE, [b"data: " + chunk + b"\n\n" for chunk in chunks])
    for chunk in chunks:
        watch(path, JSON, [chunk])


@each_reply
def test_a_garbled_reply_does_not_raise(reply: Reply) -> None:
    rng = random.Random(7)
    for _ in range(200):
        garbled = bytearray(reply.data)
        for _ in range(rng.randrange(1, 8)):
            garbled[rng.randrange(len(garbled))] = rng.randrange(256)
        watch(reply.path, reply.content_type, [bytes(garbled)])


_X = "x" * 1000
_CHAT_PIECE = events(chat_chunk(call_delta(0, arguments=_X)))[0]
_CHAT_BEGUN = events(chat_chunk(call_delta(0, name="bash")))[0]
_BLOCK = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
_DELTA = {"type": "input_json_delta", "partial_json": _X}
(_BLOCK_BEGUN, _BLOCK_PIECE) = named_events(
    {"type": "content_block_start", "content_block": _BLOCK, "index": 1},
    {"type": "content_block_delta", "delta": _DELTA, "index": 1},
)
(_ITEM,) = named_events(
    {"item": output_item(Call("bash", _X)), "type": "response.output_item.done"},
)


@pytest.mark.parametrize(
    ("path", "content_type", "first", "chunk"),
    [
        (CHAT, SSE, b"data: ", b"x" * 10_000),
        (CHAT, SSE, b"", b"data: " + b"x" * 10_000 + b"\n"),
        (CHAT, SSE, _CHAT_BEGUN, _CHAT_PIECE),
        (MESSAGES, SSE, _BLOCK_BEGUN, _BLOCK_PIECE),
        (RESPONSES, SSE, b"", _ITEM),
        (CHAT, JSON, b"{", b" " * 10_000),
    ],
    ids=["line", "event", "chat arguments", "messages arguments", "responses calls", "body"],
)
def test_memory_is_bounded_and_an_endless_reply_is_given_up(
    path: str, content_type: str, first: bytes, chunk: bytes
) -> None:
    watcher = reply_watcher(path, content_type)
    assert watcher is not None
    tracemalloc.start()
    watcher.feed(first)
    for _ in range(8 * MAX_KEPT_BYTES // len(chunk)):
        watcher.feed(chunk)
    current, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert watcher.finish() is None
    assert peak < 8 * MAX_KEPT_BYTES
    assert current < 6 * MAX_KEPT_BYTES


def test_a_million_empty_calls_are_given_up() -> None:
    watcher = reply_watcher(CHAT, SSE)
    assert watcher is not None
    for index in range(0, 20_000):
        watcher.feed(events(chat_chunk(call_delta(index, name="x")))[0])
    watcher.feed(events(chat_chunk({}, "tool_calls"))[0])
    assert watcher.finish() is None


def test_long_arguments_within_the_bound_are_kept_whole() -> None:
    call = Call("Write", dumps({"file_path": "/a", "content": "é" * 300_000}))
    assert watch(CHAT, SSE, chat_stream((call, READ), "tool_calls")) == TurnEnd(
        "chatcmpl-abc", (call, READ), "tool"
    )
    items = [output_item(Call("Write", dumps({"content": "e" * 200_000})))]
    found = watch(RESPONSES, SSE, responses_stream(items, "completed"))
    assert found is not None
    assert found.calls[0].arguments == items[0]["arguments"]
