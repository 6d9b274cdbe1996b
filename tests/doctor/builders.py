"""Request logs of made-up agents: healthy ones, to break or to leave alone."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from agentkv.doctor.diagnose import Diagnosis, diagnose
from agentkv.doctor.log_file import read_log
from agentkv.doctor.template import Template

Body = dict[str, Any]
Entry = dict[str, Any]

_TEXT = (
    "alpha beta gamma delta file test build patch class return index error value branch module "
    "socket parser cache block queue thread merge commit review deploy render layout signal"
)
_WORDS = _TEXT.split()
TOOL_NAMES = ("bash", "edit_file", "grep", "read_file")


def words(random_: random.Random, num: int) -> str:
    return " ".join(random_.choices(_WORDS, k=num))


def tool(name: str, random_: random.Random) -> Body:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": words(random_, 6)},
            "command": {"type": "string", "description": words(random_, 6)},
        },
        "required": ["command"],
    }
    function = {"name": name, "description": words(random_, 30), "parameters": schema}
    return {"type": "function", "function": function}


class Agent:
    """An agent's conversation in OpenAI's form; each `turn` is one request more."""

    def __init__(self, seed: int, *, has_thinking: bool = False, task: str | None = None) -> None:
        self.random = random.Random(seed)
        self.has_thinking = has_thinking
        lines = [words(self.random, 12) for _ in range(25)]
        self.messages: list[Body] = [
            {"role": "system", "content": "You are a coding agent.\n" + "\n".join(lines)},
            {"role": "user", "content": task or words(self.random, 60)},
        ]
        self.tools = [tool(name, random.Random(name)) for name in TOOL_NAMES]
        self.num_calls = 0

    def body(self, **more: Any) -> Body:
        return copy.deepcopy({"model": "m", "messages": self.messages, "tools": self.tools, **more})

    def reply(self) -> Body:
        """What the model says next: a call, with some words before it."""
        self.num_calls += 1
        arguments = {"command": words(self.random, 8), "path": f"src/{self.num_calls}.py"}
        call = {
            "id": f"call_{self.random.getrandbits(48):012x}",
            "type": "function",
            "function": {
                "name": self.random.choice(TOOL_NAMES),
                "arguments": json.dumps(arguments),
            },
        }
        said: Body = {"role": "assistant", "content": words(self.random, 20), "tool_calls": [call]}
        if self.has_thinking:
            said["reasoning"] = words(self.random, 70)
        return said

    def go_on(self) -> None:
        """The reply comes back with its tool's result."""
        reply = self.reply()
        self.messages.append(reply)
        result = words(self.random, self.random.randint(80, 160))
        self.messages.append(
            {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": result}
        )

    def say(self, text: str) -> None:
        """The task is done; the user asks for more."""
        self.messages.append({"role": "assistant", "content": words(self.random, 30)})
        self.messages.append({"role": "user", "content": text})

    def run(self, num_turns: int) -> list[Body]:
        """The bodies of so many turns."""
        bodies = [self.body()]
        for _ in range(num_turns - 1):
            self.go_on()
            bodies.append(self.body())
        return bodies


def head_of(body: Body) -> Body:
    """The system message."""
    found: Body = body["messages"][0]
    return found


def as_messages(body: Body) -> Body:
    """The same request for Anthropic's API."""
    made = {key: value for key, value in body.items() if key not in ("messages", "tools")}
    made["system"] = [{"type": "text", "text": head_of(body)["content"]}]
    made["tools"] = [
        {
            "name": each["function"]["name"],
            "description": each["function"]["description"],
            "input_schema": each["function"]["parameters"],
        }
        for each in body["tools"]
    ]
    made["max_tokens"] = 4096
    made["messages"] = [_block_message(message) for message in body["messages"][1:]]
    return made


def _block_message(message: Body) -> Body:
    blocks: list[Body] = []
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return {"role": "user", "content": [{**result, "content": message["content"]}]}
    if message.get("reasoning"):
        blocks.append({"type": "thinking", "thinking": message["reasoning"], "signature": "s"})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        made = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**made, "input": json.loads(function["arguments"])})
    return {"role": message["role"], "content": blocks}


def as_responses(body: Body) -> Body:
    """The same request for the responses API."""
    made = {key: value for key, value in body.items() if key not in ("messages", "tools")}
    made["instructions"] = head_of(body)["content"]
    made["tools"] = [{"type": "function", **each["function"]} for each in body["tools"]]
    items: list[Body] = []
    for message in body["messages"][1:]:
        items.extend(_items(message))
    made["input"] = items
    return made


def _items(message: Body) -> list[Body]:
    if message["role"] == "tool":
        call_id, output = message["tool_call_id"], message["content"]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    items: list[Body] = []
    if message.get("reasoning"):
        thought = {"type": "reasoning_text", "text": message["reasoning"]}
        items.append({"type": "reasoning", "summary": [], "content": [thought]})
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    if message.get("content"):
        part = {"type": kind, "text": message["content"]}
        items.append({"type": "message", "role": message["role"], "content": [part]})
    for call in message.get("tool_calls", ()):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


FORMS = {"chat": lambda body: body, "messages": as_messages, "responses": as_responses}


def named(bodies: list[Body], session: str) -> list[Entry]:
    """As a proxy logs it: body, headers and time."""
    return [
        {"timestamp": 1000.0 + i, "headers": {"X-Session-ID": session}, "body": body}
        for i, body in enumerate(bodies)
    ]


def write_log(path: Path, entries: list[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def examine(tmp_path: Path, entries: list[Any], template: Template | None = None) -> Diagnosis:
    return diagnose(read_log(write_log(tmp_path / "log.jsonl", entries)), template)


def causes(diagnosis: Diagnosis) -> set[str]:
    """The classes of what is not hidden behind something else."""
    return {finding.cause.value for finding in diagnosis.findings if not finding.is_hidden}
