"""The `agentkv` command: its subcommands and how errors end it.

What: `serve`, `demo`, `bench`, `store`, `explain`, `top`, `doctor`, `simulate`, `passport`, `plan`,
`placement` and `version`.
Why: a wrong setting is one line on stderr and exit status 2, never a stack trace.
Where: the `agentkv` script starts here; all but `version` live in files of their own.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from agentkv._version import __version__
from agentkv.cli import serve as serving
from agentkv.errors import AgentKVError
from agentkv.supported import INSTALL_HINT, TESTED_VLLM
from agentkv.terminal_text import let_output_degrade

USAGE_ERROR = 2


def build_app() -> typer.Typer:
    """The command with all subcommands."""
    # Not needed by `serve`, which replaces this process.
    from agentkv.cli import bench, store
    from agentkv.cli.demo import demo
    from agentkv.cli.doctor import doctor
    from agentkv.cli.explain import explain
    from agentkv.cli.passport import passport
    from agentkv.cli.placement import placement
    from agentkv.cli.plan import plan
    from agentkv.cli.simulate import simulate
    from agentkv.cli.top import top

    app = typer.Typer(
        name="agentkv",
        help="Makes an agent's tool-call pauses cheap on vLLM.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    # Options that we do not know are vLLM's.
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
    app.command()(demo)
    app.command()(simulate)
    app.command()(passport)
    app.command()(plan)
    app.command()(placement)
    app.add_typer(bench.app, name="bench")
    app.add_typer(store.app, name="store")
    app.command()(explain)
    app.command()(top)
    app.command()(doctor)
    app.command()(version)
    return app


def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="The model, as for `vllm serve`; comes first.", metavar="MODEL")
    ],
    dram: Annotated[
        str | None, typer.Option(help='DRAM for swapped KV: "32GiB", or "auto".', metavar="SIZE")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="What becomes of the KV of a pause; expected_cost picks the cheapest."),
    ] = None,
    agentkv_config: Annotated[
        str | None, typer.Option(help="Settings of agentkv, YAML or JSON.", metavar="FILE")
    ] = None,
) -> None:
    """Serve MODEL with agentkv. All other options are passed on to `vllm serve`."""
    settings = serving.user_settings(config_file=agentkv_config, dram=dram, policy=policy)
    serving.run(model, context.args, settings)


def version() -> None:
    """Print the versions of agentkv and vLLM."""
    print(f"agentkv {__version__}")
    print(f"vLLM {_vllm_version()} (tested with {TESTED_VLLM})")


def _vllm_version() -> str:
    """The installed vLLM, whatever its distribution is called, without importing it."""
    for distribution in metadata.packages_distributions().get("vllm", []):
        return f"{metadata.version(distribution)} ({distribution})"
    return f"is not installed: {INSTALL_HINT}"


def main() -> None:
    """Run the command; errors meant for the user become one line and exit status 2."""
    let_output_degrade()
    try:
        build_app()()
    except AgentKVError as error:
        print(f"agentkv: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
