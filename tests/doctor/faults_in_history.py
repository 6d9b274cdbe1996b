"""Faults in the conversation: what comes back is not what was sent."""

from __future__ import annotations

import copy
import json
import random
import re

from tests.doctor.builders import Agent, Body, Entry, words
from tests.doctor.planting import NUM_TURNS, each_body

# --- history ---


def argument_order(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        for message in body["messages"]:
            for call in message.get("tool_calls", ()):
                pairs = list(json.loads(call["function"]["arguments"]).items())
                random.Random(turn).shuffle(pairs)
                pairs = pairs if turn % 2 else pairs[::-1]
                call["function"]["arguments"] = json.dumps(
                    dict(sorted(pairs, reverse=bool(turn % 2)))
                )

    return each_body(seed, change)


def argument_spaces(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        separators = (",", ":") if turn % 2 else (", ", ": ")
        for message in body["messages"]:
            for call in message.get("tool_calls", ()):
                value = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = json.dumps(value, separators=separators)

    return each_body(seed, change)


def json_result_order(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        for message in body["messages"]:
            if message["role"] == "tool":
                value = {"out": message["content"], "code": 0, "err": ""}
                message["content"] = json.dumps(value, sort_keys=bool(turn % 2))

    return each_body(seed, change)


def dropped_thinking(seed: int) -> list[Body]:
    """A93 by the client: only the newest reply keeps its thinking."""

    def change(body: Body, turn: int) -> None:
        thoughts = [message for message in body["messages"] if "reasoning" in message]
        for message in thoughts[:-1]:
            del message["reasoning"]

    return each_body(seed, change, has_thinking=True)


def thinking_never_sent_back(seed: int) -> list[Entry]:
    """A93: what the model thought is in its replies and in no request."""
    agent, entries = Agent(seed, has_thinking=True), []
    for _ in range(NUM_TURNS):
        body = agent.body()
        agent.go_on()
        reply = copy.deepcopy(agent.messages[-2])
        del agent.messages[-2]["reasoning"]
        entries.append({"request": body, "response": _completion(reply)})
    return entries


def stripped_reply(seed: int) -> list[Entry]:
    """A94: a newline at the beginning of each reply is stripped by the client."""
    agent, entries = Agent(seed), []
    for _ in range(NUM_TURNS):
        body = agent.body()
        agent.go_on()
        reply = copy.deepcopy(agent.messages[-2])
        reply["content"] = "\n\n" + reply["content"]
        entries.append({"request": body, "response": _completion(reply)})
    return entries


def _completion(reply: Body) -> Body:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "message": reply}]}


def other_tokens(seed: int) -> list[Entry]:
    """A94: the reply's text comes back as other tokens."""
    random_ = random.Random(seed)
    prompt = [random_.randrange(1000, 9000) for _ in range(600)]
    entries = []
    for _ in range(NUM_TURNS):
        reply = [*(random_.randrange(1000, 9000) for _ in range(80)), 39, 729]
        choice = {"index": 0, "text": "…", "token_ids": reply}
        entries.append(
            {"body": {"model": "m", "prompt": prompt}, "response": {"choices": [choice]}}
        )
        resent = [*reply[:20], 74225, 8510, *reply[22:]]
        prompt = [*prompt, *resent, *(random_.randrange(1000, 9000) for _ in range(50))]
    return entries


def counted_short(seed: int) -> list[Entry]:
    """A94, seen in the server's counts alone: the reply's tokens are never found again."""
    entries, prompt = [], 0
    for body in Agent(seed).run(NUM_TURNS):
        found, prompt = prompt // 16 * 16, len(json.dumps(body)) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": 200}
        entries.append(
            {"body": body, "usage": {**usage, "prompt_tokens_details": {"cached_tokens": found}}}
        )
    return entries


def evicted(seed: int) -> list[Entry]:
    """The log is healthy; the server had nothing left on two turns."""
    entries, known = [], 0
    for turn, body in enumerate(Agent(seed).run(NUM_TURNS)):
        prompt = len(json.dumps(body)) // 4
        found = 0 if turn in (4, 6) else known
        usage = {"input_tokens": prompt - found, "cache_read_input_tokens": found}
        entries.append({"body": body, "usage": {**usage, "output_tokens": 30}})
        known = prompt + 30
    return entries


def compaction(seed: int) -> list[Body]:
    """Once, half way, a summary stands for the history."""
    agent = Agent(seed)
    bodies = agent.run(NUM_TURNS)
    summary = "This session is being continued from a previous conversation. " + words(
        agent.random, 80
    )
    agent.messages = [agent.messages[0], {"role": "user", "content": summary}]
    return [*bodies, *agent.run(4)]


def compaction_with_tail(seed: int) -> list[Body]:
    """The newest messages stay, a summary stands for the rest."""
    agent = Agent(seed)
    bodies = agent.run(NUM_TURNS)
    summary = "<summary>" + words(agent.random, 80) + "</summary>"
    agent.messages[1:-4] = [{"role": "user", "content": summary}]
    agent.go_on()
    return [*bodies, *agent.run(3)]


def sliding_window(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        body["messages"][2 : max(2, len(body["messages"]) - 6)] = []

    return each_body(seed, change)


def cleared_results(seed: int) -> list[Body]:
    """All but the newest three results are cleared."""

    def change(body: Body, turn: int) -> None:
        results = [message for message in body["messages"] if message["role"] == "tool"]
        for message in results[:-3]:
            message["content"] = "[Old tool result content cleared]"

    return each_body(seed, change)


def cut_results(seed: int) -> list[Body]:
    """A result is sent whole once, and cut from then on."""

    def change(body: Body, turn: int) -> None:
        results = [message for message in body["messages"] if message["role"] == "tool"]
        for message in results[:-1]:
            message["content"] = message["content"][:120] + " … truncated"

    return each_body(seed, change)


def memory_first(seed: int) -> list[Body]:
    """Retrieved text is put before the conversation."""

    def change(body: Body, turn: int) -> None:
        text = "Memories: " + words(random.Random(f"{seed}/{turn}"), 40)
        if turn >= 2:
            body["messages"].insert(1, {"role": "user", "content": text})

    return each_body(seed, change)


def reminder_in_newest(seed: int) -> list[Body]:
    """A reminder lies in the newest message only."""

    def change(body: Body, turn: int) -> None:
        reminder = "\n<system-reminder>" + words(random.Random(seed), 40) + "</system-reminder>"
        body["messages"][-1]["content"] += reminder

    agent = Agent(seed)
    bodies = []
    for turn in range(NUM_TURNS):
        body = agent.body()
        change(body, turn)
        bodies.append(body)
        agent.say(words(agent.random, 30))
    return bodies


def reminder_message(seed: int) -> list[Body]:
    """A reminder is a last message of its own, which the next turn does not have."""

    def change(body: Body, turn: int) -> None:
        reminder = "Reminder: " + words(random.Random(seed), 60)
        body["messages"].append({"role": "user", "content": reminder})

    return each_body(seed, change)


def numbered_calls(seed: int) -> list[Body]:
    """Ids of calls are made anew for each request."""

    def change(body: Body, turn: int) -> None:
        for index, message in enumerate(body["messages"]):
            for call in message.get("tool_calls", ()):
                call["id"] = f"call_{turn:03}{index:05}"
                body["messages"][index + 1]["tool_call_id"] = call["id"]

    return each_body(seed, change)


def image_again(seed: int) -> list[Body]:
    """A screenshot is encoded anew each time."""

    def change(body: Body, turn: int) -> None:
        url = f"data:image/png;base64,{random.Random(turn).getrandbits(400):x}"
        text = body["messages"][1]["content"]
        image = {"type": "image_url", "image_url": {"url": url}}
        body["messages"][1]["content"] = [{"type": "text", "text": text}, image]

    return each_body(seed, change)


def image_gone(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        text = {"type": "text", "text": body["messages"][1]["content"]}
        body["messages"][1]["content"] = [text, image] if turn < 4 else [text]

    return each_body(seed, change)


def rolling_markers(seed: int) -> list[Body]:
    """A99: the message with the marker is cut into parts, the others are one text."""

    def change(body: Body, turn: int) -> None:
        message = body["messages"][-1]
        lines = re.split(r"(?<= file )", message["content"], maxsplit=1)
        lines = lines if len(lines) > 1 else [message["content"][:40], message["content"][40:]]
        parts = [{"type": "text", "text": line} for line in lines]
        parts[-1]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
        message["content"] = parts

    return each_body(seed, change)
