"""agentkv.cli: the `agentkv` command.

What: one file per subcommand, put together in `main`.
Why: a user who only looks around must not load vLLM; each file imports what it needs when it runs.
Where: the top of the import tree; nothing imports it.
"""
