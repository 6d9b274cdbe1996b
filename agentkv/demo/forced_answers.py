"""Requests that make any model answer with a given tool call, or with the end of its work.

Why: a model of random weights calls no tool by itself, and of a client that says nothing else
agentkv learns from the answers: which tool runs, with which command, and that no tool runs any
more. The fields are OpenAI's own, those of every agent; only the schemas, which leave the model one
answer to choose, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from agentkv.demo.waits import bare_command

MAX_COMMAND_CHARS = 40  # A token of a schema is often one letter: a whole command takes long.
MAX_ANSWER_TOKENS = 400  # far over the longest answer's
END_TEXT = "Done."
SERVER_ARGS = (
    # One of the parsers that leave the model to the schema; others allow it any white space.
    *("--enable-auto-tool-choice", "--tool-call-parser", "granite"),
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
)
"""What a vLLM server needs to hold the model to the schema."""


class ForcedAnswer(Protocol):
    """What the model has to answer."""

    def fields(self) -> dict[str, Any]:
        """The fields of a chat request; the answer has an end of its own."""
        ...


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """A tool call: the beginning of a command, after its `cd`."""

    tool: str
    command: str

    @classmethod
    def of(cls, tool: str, command: str) -> ForcedCall:
        return cls(tool, bare_command(command)[:MAX_COMMAND_CHARS])

    def fields(self) -> dict[str, Any]:
        return {
            "tools": [_function(self.tool, {"type": "string", "enum": [self.command]})],
            "tool_choice": {"type": "function", "function": {"name": self.tool}},
            "max_tokens": MAX_ANSWER_TOKENS,
        }


@dataclass(frozen=True, slots=True)
class ForcedEnd:
    """A text and no call, though the tool is there to be called: the agent has finished."""

    tool: str

    def fields(self) -> dict[str, Any]:
        schema = {"type": "string", "enum": [END_TEXT]}
        return {
            "tools": [_function(self.tool, {"type": "string"})],
            "tool_choice": "auto",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "end", "schema": schema},
            },
            "max_tokens": MAX_ANSWER_TOKENS,
        }


def _function(name: str, command: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"command": command},
        "required": ["command"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
