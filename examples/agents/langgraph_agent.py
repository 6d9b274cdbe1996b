"""A LangGraph agent whose tool calls agentkv hears of through LangChain's callbacks.

Usage: python examples/agents/langgraph_agent.py --base-url http://localhost:8000/v1 --model MODEL
Needs: pip install 'vllm-agentkv[langgraph]'
vLLM makes tool calls with --enable-auto-tool-choice --tool-call-parser PARSER.
Only three lines are agentkv's: the session, its headers, the callback. Tool calls are forced and
choose from a few commands, so that it works with any model, even with one of random weights.
"""

import argparse
import os
import subprocess
from typing import Any, Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentkv.client import AgentSession
from agentkv.client.langchain import AgentKVCallback

TIMEOUT_S = 30


@tool
def bash(command: Literal["sleep 1", "uname -sr", "df -h /tmp"]) -> str:
    """Runs a command."""
    done = subprocess.run(
        command.split(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout or f"exit status {done.returncode}"


def main() -> None:
    args = parse_args()
    with AgentSession(args.base_url, args.api_key) as session:
        model = ChatOpenAI(
            model=args.model,
            base_url=args.base_url,
            api_key=args.api_key,
            max_tokens=64,
            default_headers=session.headers,
        )
        graph = agent(model, num_forced_calls=args.turns)
        question = {"messages": [("user", "Find out about this machine.")]}
        result = graph.invoke(question, config={"callbacks": [AgentKVCallback(session)]})
    for message in result["messages"]:
        print(f"{message.type}: {message.content or [c['args'] for c in message.tool_calls]}")
    print(f"agentkv: {session.delivery}")


def agent(model: ChatOpenAI, *, num_forced_calls: int) -> Any:
    """The usual loop: the model, the tools it asks for, the model again."""

    def call_model(state: MessagesState) -> dict[str, Any]:
        num_calls = sum(message.type == "tool" for message in state["messages"])
        choice = "bash" if num_calls < num_forced_calls else "none"
        return {
            "messages": [model.bind_tools([bash], tool_choice=choice).invoke(state["messages"])]
        }

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode([bash]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://localhost:8000/v1", help="of the server")
    parser.add_argument("--model", required=True, help="as the server names it")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "EMPTY"))
    parser.add_argument("--turns", type=int, default=2, help="turns that end in a tool call")
    return parser.parse_args()


if __name__ == "__main__":
    main()
