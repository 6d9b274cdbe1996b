"""The SDK: an agent tells the server when its tools run, and its KV is back before they are done.

What: `AgentSession` and its asyncio twin; adapters for LangChain and LangGraph
(`agentkv.client.langchain`) and the OpenAI Agents SDK (`agentkv.client.openai_agents`).
Why: the server can guess all of this, but only the agent knows when a tool has finished.
Where: in the agent's process. It needs neither vLLM nor a server that knows agentkv.
"""

from agentkv.client.delivery import Delivery, Limits
from agentkv.client.session import AgentSession, AsyncAgentSession

__all__ = ["AgentSession", "AsyncAgentSession", "Delivery", "Limits"]
