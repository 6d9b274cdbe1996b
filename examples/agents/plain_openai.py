"""An agent loop with the plain `openai` client that tells agentkv when its tool runs.

Usage: python examples/agents/plain_openai.py --base-url http://localhost:8000/v1 --model MODEL
Works with any server that speaks the OpenAI API; one without agentkv just does not hear of the
pauses. vLLM makes tool calls with --enable-auto-tool-choice --tool-call-parser PARSER.
They are forced here, and their arguments are a choice of a few commands, so that it works with any
model, even with one of random weights, and runs nothing else.
"""

import argparse
import json
import os
import subprocess
from typing import Any

from openai import OpenAI

from agentkv.client import AgentSession

COMMANDS = ["sleep 1", "uname -sr", "df -h /tmp"]
BASH: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "enum": COMMANDS}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
TIMEOUT_S = 30


def main() -> None:
    args = parse_args()
    with AgentSession(args.base_url, args.api_key) as session:
        client = session.wrap(OpenAI(base_url=args.base_url, api_key=args.api_key))
        messages: list[Any] = [{"role": "user", "content": "Find out about this machine."}]
        for _ in range(args.turns):
            choice: Any = {"type": "function", "function": {"name": "bash"}}
            messages += turn(client, session, args.model, messages, choice)
        turn(client, session, args.model, messages, "none")
    print(f"agentkv: {session.delivery}")


def turn(
    client: OpenAI, session: AgentSession, model: str, messages: list[Any], tool_choice: Any
) -> list[Any]:
    """One request and the tools it asks for; returns the messages that this adds."""
    reply = client.chat.completions.create(
        model=model, messages=messages, tools=[BASH], tool_choice=tool_choice, max_tokens=64
    )
    message = reply.choices[0].message
    print(f"model: {message.content or ''}")
    added: list[Any] = [message.model_dump(exclude_none=True)]
    for call in message.tool_calls or ():
        command = command_of(call.function.arguments)  # type: ignore[union-attr]
        with session.tool("bash", command=command, timeout_s=TIMEOUT_S):
            output = run(command)
        print(f"bash: {command} -> {output}")
        added.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return added


def command_of(arguments: str) -> str:
    """The command in what the model wrote, which need not be JSON if it was cut off."""
    try:
        return str(json.loads(arguments)["command"])
    except (ValueError, TypeError, KeyError):
        return ""


def run(command: str) -> str:
    """Runs one of the commands that the model may choose from."""
    if command not in COMMANDS:
        return "no such command"
    done = subprocess.run(
        command.split(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout or f"exit status {done.returncode}"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://localhost:8000/v1", help="of the server")
    parser.add_argument("--model", required=True, help="as the server names it")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "EMPTY"))
    parser.add_argument("--turns", type=int, default=2, help="turns that end in a tool call")
    return parser.parse_args()


if __name__ == "__main__":
    main()
