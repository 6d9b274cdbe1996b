"""Adds `--kv-connector NAME` and `--agentkv-config FILE` to vLLM's command line.

Symbol: `EngineArgs.add_cli_args` (staticmethod), wrapped: the flags are added to its parser.
Why: vLLM gives plugins no access to its parser, and the alternative is a page of JSON in
`--kv-transfer-config`. The flags write the same field, `kv_transfer_config`, and nothing else.
Delete when: vLLM has a flag that selects a connector by name.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs

from agentkv.config import load_config_file
from agentkv.errors import ConfigError
from agentkv.symbols import Symbol, find_problems

from .connector_name import CONNECTOR_NAME

SYMBOLS = (
    Symbol("vllm.engine.arg_utils:EngineArgs.add_cli_args", ("parser",)),
    Symbol(
        "vllm.config:KVTransferConfig",
        ("kv_connector", "kv_role", "kv_load_failure_policy", "kv_connector_extra_config"),
    ),
)

TARGET = "--kv-transfer-config"


def apply() -> str | None:
    """Wrap `add_cli_args` once; returns what does not fit, or None."""
    if problems := find_problems(SYMBOLS):
        return problems[0]
    original: Callable[..., Any] = EngineArgs.add_cli_args
    if getattr(original, "_is_agentkv", False):
        return None

    @functools.wraps(original)
    def add_cli_args(parser: Any, *args: Any, **kwargs: Any) -> Any:
        parser = original(parser, *args, **kwargs)
        add_flags(parser)
        return parser

    add_cli_args._is_agentkv = True  # type: ignore[attr-defined]
    EngineArgs.add_cli_args = staticmethod(add_cli_args)
    return None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that the parser does not have yet; each excludes `--kv-transfer-config`."""
    group = parser.add_argument_group("AgentKV", "Make agents' tool-call pauses cheap (plugin).")
    for action, metavar, text in (
        (ConnectorAction, "NAME", "KV connector by name, with its default settings: agentkv."),
        (ConfigFileAction, "FILE", "agentkv's settings (YAML or JSON); selects agentkv."),
    ):
        if action.option not in parser._option_string_actions:
            added = group.add_argument(
                action.option, action=action, metavar=metavar, help=text, default=argparse.SUPPRESS
            )
            _exclude(parser, added)


def _exclude(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Let argparse itself refuse the flag together with `--kv-transfer-config`, in either order."""
    target = parser._option_string_actions.get(TARGET)
    if target is not None:
        parser.add_mutually_exclusive_group()._group_actions.extend([action, target])


class ConnectorAction(argparse.Action):
    """`--kv-connector NAME`: select a connector, with both roles and its own defaults."""

    option = "--kv-connector"

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Write the field, keeping the settings of an `--agentkv-config` given before."""
        name = str(values)
        selected = getattr(namespace, "kv_transfer_config", None)
        if name == CONNECTOR_NAME:
            namespace.kv_transfer_config = selected or agentkv_transfer_config({})
        elif selected is not None and selected.kv_connector == CONNECTOR_NAME:
            _exit(parser, f"{ConfigFileAction.option} needs --kv-connector agentkv, not {name}")
        else:
            namespace.kv_transfer_config = KVTransferConfig(kv_connector=name, kv_role="kv_both")


class ConfigFileAction(argparse.Action):
    """`--agentkv-config FILE`: select agentkv with the settings of a file."""

    option = "--agentkv-config"

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Read and check the file, then write the field."""
        selected = getattr(namespace, "kv_transfer_config", None)
        if selected is not None and selected.kv_connector != CONNECTOR_NAME:
            _exit(
                parser, f"{self.option} needs --kv-connector agentkv, not {selected.kv_connector}"
            )
        try:
            user_extra = load_config_file(str(values))
        except ConfigError as error:
            _exit(parser, str(error))
        namespace.kv_transfer_config = agentkv_transfer_config(user_extra)


def agentkv_transfer_config(user_extra: dict[str, Any]) -> KVTransferConfig:
    """vLLM's config for our connector; the user's keys are resolved later, in `engine_config`."""
    return KVTransferConfig(
        kv_connector=CONNECTOR_NAME,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=user_extra,
    )


def _exit(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Stop with one line: argparse's own `error` puts a screen of usage before it."""
    parser.exit(2, f"{parser.prog}: error: {message}\n")
