"""Waits that agents' tools took elsewhere: the predictor's knowledge before its first observation.

What: quantiles of measured tool waits per tool and command class, and the names that clients give
the same tool. Why: the first pauses of a fresh server must not be guesses. Where: `seeds` lays
each row out as a histogram worth ten observations, so that a server's own waits soon outweigh it.

Only summary statistics are shipped, computed from AgentCgroup (Claude Code on SWE tasks with cloud
models), mini-swe-agent on terminal-bench-core 0.1.1 (the second row where there are two; it stopped
commands at 30 s) and kv-cache-tester (rows "" and "human": whole pauses of interactive coding
sessions, approvals included, the short ones good to about 1 s).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEVELS: Final = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
"""The quantile levels of every row; waits in seconds, those under 0.5 ms given as 0.5 ms."""

Row = tuple[float, ...]

ANY_TOOL: Final = ""
SHELL: Final = "bash"

PRIOR_WAITS: Final[Mapping[str, tuple[Row, ...]]] = {
    "": ((0.0005, 0.0005, 0.0005, 0.0005, 1.03, 5.84, 60.8, 140, 780, 27000),),
    "bash": (
        (0.013, 0.038, 0.071, 0.113, 0.798, 1.53, 2.97, 6.79, 59.4, 181),
        (0.0005, 0.0123, 0.0143, 0.0189, 0.0355, 0.672, 20.8, 29.9, 30, 62.1),
    ),
    "bash:build/compile": (
        (0.083, 0.386, 0.592, 1.06, 1.19, 1.51, 1.86, 3.85, 6.15, 6.72),
        (0.0005, 0.013, 0.0159, 0.0234, 0.304, 2.52, 3.76, 5.02, 17.4, 20.1),
    ),
    "bash:file view/edit": (
        (0.031, 0.0316, 0.0328, 0.043, 0.101, 0.682, 1.45, 1.81, 2.61, 2.89),
        (0.0005, 0.0105, 0.0122, 0.015, 0.0194, 0.029, 0.0838, 0.281, 29.9, 30.6),
    ),
    "bash:git local": (
        (0.014, 0.03, 0.034, 0.0762, 0.113, 0.409, 0.852, 1.04, 1.77, 5.58),
        (0.0147, 0.0185, 0.0191, 0.0228, 0.0291, 0.0449, 0.182, 0.31, 0.439, 0.49),
    ),
    "bash:grep/find/search": (
        (0.013, 0.034, 0.0402, 0.0795, 0.101, 0.185, 1.02, 1.48, 3.1, 12.2),
        (0.0009, 0.0133, 0.0155, 0.0182, 0.0266, 0.0591, 0.48, 1.78, 2.19, 2.72),
    ),
    "bash:network/http": ((0.0005, 0.0121, 0.0151, 0.0204, 0.0482, 1.03, 9.47, 29.5, 30, 30.1),),
    "bash:other": ((0.0053, 0.0133, 0.0145, 0.0193, 0.0474, 0.876, 29.6, 29.9, 30, 31.1),),
    "bash:pkg install": (
        (0.207, 0.823, 0.946, 1.2, 1.76, 3.22, 6.48, 10.1, 37.1, 60.3),
        (0.0084, 0.796, 1.64, 3.09, 23.7, 29.9, 29.9, 30, 30.1, 30.2),
    ),
    "bash:pytest/test": (
        (0.055, 0.398, 0.698, 1.18, 1.79, 2.99, 10.9, 29.5, 121, 181),
        (0.496, 0.544, 0.556, 0.686, 0.996, 1.41, 1.97, 2.73, 3.22, 3.34),
    ),
    "bash:run node/other": ((0.0146, 0.0158, 0.0179, 0.0423, 0.0655, 0.24, 29.8, 29.9, 30, 30),),
    "bash:run python": (
        (0.046, 0.0937, 0.165, 0.544, 0.86, 1.17, 1.56, 2.1, 4.55, 10.6),
        (0.0005, 0.016, 0.0197, 0.034, 0.149, 2.4, 27.5, 29.9, 30, 62.1),
    ),
    "bash:sleep/wait": ((0.0013, 0.0159, 0.0177, 0.0219, 0.0384, 5.02, 13.9, 29.9, 30, 30),),
    "edit": ((0.01, 0.0175, 0.022, 0.0295, 0.038, 0.061, 0.076, 0.089, 0.115, 0.138),),
    "glob": ((0.024, 0.0271, 0.0314, 0.0648, 0.383, 1.13, 1.6, 2.76, 3.12, 3.2),),
    "grep": ((0.016, 0.027, 0.029, 0.033, 0.0435, 0.073, 0.744, 1.21, 1.61, 2.35),),
    "human": ((0.0005, 0.0005, 0.605, 39, 154, 624, 1840, 4160, 22800, 77400),),
    "read": ((0.001, 0.018, 0.02, 0.025, 0.034, 0.129, 0.655, 1.14, 1.91, 2.28),),
    "task": ((0.016, 3.65, 18.1, 41.5, 65.9, 98.3, 136, 210, 319, 362),),
    "todowrite": ((0.014, 0.016, 0.018, 0.02, 0.0255, 0.0357, 0.0541, 0.0744, 0.145, 0.504),),
    "webfetch": ((3.6, 3.61, 3.62, 4.79, 7.75, 8.74, 10.3, 11.8, 13, 13.3),),
    "websearch": ((6.11, 6.67, 7.23, 8.49, 12.9, 15.6, 16.1, 16.6, 17, 17.1),),
    "write": ((0.015, 0.0171, 0.02, 0.026, 0.0355, 0.0502, 0.0656, 0.0774, 0.0885, 0.091),),
}
"""tool or "tool:command class" → one row per source; sources count alike. "" is any tool."""

_TOOL_TO_NAMES = {
    SHELL: "shell terminal sh zsh execute_bash run_bash run_command execute_command exec_command"
    " run_shell_command run_terminal_cmd run_in_terminal local_shell container.exec powershell",
    "read": "read_file readfile view view_file open_file fileread cat notebookread",
    "grep": "search grep_search search_files search_file_content codebase_search ripgrep",
    "glob": "list_files list_dir list_directory ls find_files file_search",
    "edit": "edit_file multiedit str_replace str_replace_editor str_replace_based_edit_tool"
    " apply_patch replace search_replace notebookedit",
    "write": "write_file create_file writefile",
    "todowrite": "update_plan todo_write todoread write_todos",
    "task": "agent subagent sub_agent delegate spawn_agent dispatch_agent",
    "websearch": "web_search google_web_search search_web",
    "webfetch": "web_fetch fetch fetch_url read_url browse",
    "human": "user ask_user askuserquestion ask_followup_question approval",
}
NAME_TO_TOOL: Final[Mapping[str, str]] = {
    name: tool for tool, names in _TOOL_TO_NAMES.items() for name in names.split()
}
"""What clients call a tool (lower case) → the name its statistics are kept under."""
