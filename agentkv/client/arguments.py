"""What a tool call says about its wait, for frameworks that hand over name and arguments.

Why not written here: the server reads the same from a reply, and both must come to the same tool
and command, or the predictor would learn them apart. Where: used by the framework adapters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentkv.watch.calls import tool_calls
from agentkv.watch.turn_end import Call, TurnEnd


def details_of(tool: str, arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Command and time-out for `AgentSession.tool_started`; `arguments` as JSON or decoded."""
    if not isinstance(arguments, str):
        arguments = json.dumps(dict(arguments or {}), default=str)
    end = TurnEnd(request_id=None, calls=(Call(tool, arguments),), stop="tool")
    for call in tool_calls(end):
        return {"command": call.command, "timeout_s": call.timeout_s}
    return {}
