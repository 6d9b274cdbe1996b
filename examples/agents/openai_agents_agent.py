"""An agent of the OpenAI Agents SDK whose tool calls agentkv hears of through its run hooks.

Usage: python examples/agents/openai_agents_agent.py --base-url http://localhost:8000/v1 --model M
Needs: pip install 'vllm-agentkv[agents]'
vLLM makes tool calls with --enable-auto-tool-choice --tool-call-parser PARSER.
Only three lines are agentkv's: the session, the wrapped client, the hooks. The first turn is forced
to call the tool, which has a few commands to choose from, so that it works with any model, even
with one of random weights.
"""

import argparse
import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from agentkv.client import AsyncAgentSession
from agentkv.client.openai_agents import AgentKVHooks


@function_tool
async def bash(command: Literal["sleep 1", "uname -sr", "df -h /tmp"]) -> str:
    """Runs a command."""
    process = await asyncio.create_subprocess_exec(
        *command.split(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    print(f"bash: {command}")
    return output.decode() or f"exit status {process.returncode}"


async def main() -> None:
    args = parse_args()
    set_tracing_disabled(True)  # It would be sent to OpenAI.
    client = AsyncOpenAI(base_url=args.base_url, api_key=args.api_key)
    async with AsyncAgentSession(args.base_url, args.api_key) as session:
        agent = Agent(
            name="Assistant",
            instructions="Answer after a look at the machine.",
            model=OpenAIChatCompletionsModel(args.model, openai_client=session.wrap(client)),
            # Of the first turn only: the SDK lets the model choose after a tool was called.
            model_settings=ModelSettings(tool_choice="bash", max_tokens=64),
            tools=[bash],
        )
        for question in ("What is this machine?", "And its disk?"):
            result = await Runner.run(agent, question, hooks=AgentKVHooks(session))
            print(f"{question} -> {result.final_output}")
    print(f"agentkv: {session.delivery}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://localhost:8000/v1", help="of the server")
    parser.add_argument("--model", required=True, help="as the server names it")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "EMPTY"))
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
