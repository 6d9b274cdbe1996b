"""What the tool calls of a turn tell about the wait: tool, command and time-out.

What: finds the shell line, path or query in the arguments, and the limit that the tool will be
cut off at. Why: "Bash" alone spans milliseconds to minutes, its command does not. Where: between
a `TurnEnd` and a pause event. Arguments come from a model: all of it may be missing or wrong.
Whether a command sleeps is left to the predictor, which reads every command.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from agentkv import signals
from agentkv.watch.turn_end import Call, TurnEnd

MAX_CALLS = 64  # what an event may carry

_COMMAND_KEYS = (
    *("command", "cmd", "command_line", "CommandLine", "commands", "script", "code"),
    *("chars", "keystrokes"),
)
_OBJECT_KEYS = (
    *("file_path", "filePath", "path", "absolute_path", "target_file", "notebook_path", "filename"),
    *("pattern", "url", "query", "description"),
)
_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "fish", "pwsh", "powershell"))

# Time-out keys that name their unit, in lower case without "_"; in seconds each.
_KEY_TO_UNIT_S = {
    **dict.fromkeys(("timeoutms", "timeoutmillis", "timeoutmilliseconds"), 1e-3),
    **dict.fromkeys(("timeouts", "timeoutsec", "timeoutsecs", "timeoutseconds"), 1.0),
    "yieldtimems": 1e-3,  # Codex: the call returns then, whether or not the command has ended
}
# Tools whose bare `timeout` has a unit we know: Claude Code's count milliseconds, OpenHands' and
# Cline's seconds. The case matters: pi's "bash" counts seconds, OpenCode's milliseconds.
_TOOL_TO_UNIT_S = {"Bash": 1e-3, "PowerShell": 1e-3, "execute_bash": 1.0, "execute_command": 1.0}
_LEAST_BARE_MS = 10_000.0
"""A bare time-out from here on is in milliseconds. A wait believed too long costs less than one
believed over, so that the doubtful values below count as seconds."""

_BACKGROUND_KEYS = ("run_in_background", "is_background", "isBackground", "background")
_BACKGROUND_WAIT_S = 0.1  # the process is started and left alone


def tool_calls(end: TurnEnd) -> tuple[signals.ToolCall, ...]:
    """The calls of a turn, at most MAX_CALLS of them; calls without a name are left out."""
    found = (_tool_call(call) for call in end.calls[:MAX_CALLS])
    return tuple(call for call in found if call is not None)


def offers_tools(body: Mapping[str, Any] | None) -> bool:
    """Whether a request lets the model call tools.

    Without, the agent may find its calls in the text itself, and the end of a turn without a tool
    call does not mean that a human is next.
    """
    if not isinstance(body, Mapping):
        return False
    return bool(body.get("tools")) and body.get("tool_choice") not in ("none", {"type": "none"})


def _tool_call(call: Call) -> signals.ToolCall | None:
    tool = _clean(call.tool)
    if tool is None:
        return None
    arguments = _arguments(call.arguments)
    if isinstance(arguments, str):
        return signals.ToolCall(tool=tool, command=_clean(arguments))
    is_background = any(arguments.get(key) in (True, "true") for key in _BACKGROUND_KEYS)
    return signals.ToolCall(
        tool=tool,
        command=_command(arguments),
        timeout_s=_timeout_s(tool, arguments),
        expected_wait_s=_BACKGROUND_WAIT_S if is_background else None,
    )


def _arguments(text: str) -> Mapping[str, Any] | str:
    """The arguments as an object, or the text itself for a tool that takes free text."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.lstrip()[:1] in ("{", "[") else text
    if isinstance(parsed, str):
        return parsed
    return parsed if isinstance(parsed, dict) else {}


def _command(arguments: Mapping[str, Any]) -> str | None:
    """The command line, or what the tool works on if it takes none."""
    command = next(filter(None, (_line(arguments.get(key)) for key in _COMMAND_KEYS)), None)
    subject = next(filter(None, (_line(arguments.get(key)) for key in _OBJECT_KEYS[:-1])), None)
    if command is None:
        return subject or _line(arguments.get(_OBJECT_KEYS[-1]))
    # Editors have sub-commands such as "view", which say little without the file.
    is_single_word = subject is not None and command.isidentifier()
    return _clean(f"{command} {subject}") if is_single_word else command


def _line(value: object) -> str | None:
    if isinstance(value, str):
        return _clean(value)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return None
    if len(value) == 3 and value[0].rpartition("/")[2] in _SHELLS and value[1].startswith("-"):
        return _clean(value[2])  # ["bash", "-lc", "the line"]
    return _clean(shlex.join(value))


def _timeout_s(tool: str, arguments: Mapping[str, Any]) -> float | None:
    """The shortest limit that is stated; 0 means none for the clients that allow it."""
    limits = []
    for key, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        name = key.lower().replace("_", "")
        number = _number(value) if name in _KEY_TO_UNIT_S or name == "timeout" else 0.0
        unit_s = _KEY_TO_UNIT_S.get(name) or _TOOL_TO_UNIT_S.get(tool)
        if unit_s is None:
            unit_s = 1e-3 if number >= _LEAST_BARE_MS else 1.0
        if 0 < number * unit_s <= signals.MAX_SECONDS:
            limits.append(number * unit_s)
    return min(limits, default=None)


def _number(value: int | float | str) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _clean(text: str) -> str | None:
    """Text that any process can encode, cut to what a signal may carry; None if it is blank."""
    text = text[: signals.MAX_TEXT_CHARS].strip()
    return text.encode(errors="replace").decode() or None
