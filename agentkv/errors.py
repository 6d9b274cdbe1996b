"""The errors that agentkv raises.

What: three classes, all for problems a user can mend.
Why: a start that stops with one clear line beats a stack trace. Nothing here is raised while
requests run.
Where: the root of the import tree; every other module may import it.

    AgentKVError
    ├── ConfigError           a setting is wrong: names the key, the problem and how to mend it
    └── UnsupportedVllmError  the installed vLLM lacks something that agentkv relies on
"""


class AgentKVError(Exception):
    """Base of everything agentkv raises on purpose; its text is one line meant for the user."""


class ConfigError(AgentKVError):
    """A setting is wrong. The text names the key, what is wrong and the nearest valid value."""


class UnsupportedVllmError(AgentKVError):
    """The installed vLLM is missing, outside the tested range, or differs in a symbol we call."""
