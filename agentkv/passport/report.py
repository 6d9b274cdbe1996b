"""A passport as tables of at most 100 letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentkv.passport.layers import Group
from agentkv.passport.live import LiveEngine
from agentkv.passport.passport import Passport
from agentkv.passport.roofline import Roofline
from agentkv.passport.text import number_text, seconds_text, size_text

COLUMNS = 100


def print_passport(
    passport: Passport, roofline: Roofline | None, out: Console, contexts: Sequence[int]
) -> None:
    """The groups of layers, what a sequence takes, the weights, and bounds of an accelerator."""
    out.print(f"[bold]{escape(passport.name)}[/]: {passport.model_type}, {passport.dtype}")
    show(out, f"State of a sequence, KV in {passport.dtypes.kv}", _groups(passport))
    for line in _lines(passport):
        out.print(line, highlight=False)
    show(out, *_contexts(passport, roofline, contexts))
    if roofline is not None:
        out.print(_bounds(roofline), highlight=False)
    for note in _notes(passport):
        out.print(f"[dim]{escape(note)}[/]", highlight=False)


def print_engine(passport: Passport, engine: LiveEngine, out: Console) -> None:
    """The running engine's pool."""
    each = f"each of {engine.num_engines} engines" if engine.num_engines > 1 else "the engine"
    text = f"pool                {engine.num_blocks:,} blocks in {each}"
    if engine.pool_tokens is not None:
        text += f": {engine.pool_tokens:,} tokens"
    if len(passport.groups) == 1 and passport.groups[0].grows:
        tokens = engine.num_blocks * engine.block_tokens
        text += f", {size_text(tokens * passport.bytes_per_token)} on all devices"
    out.print(text, highlight=False)
    if passport.serving.dtype is None:
        out.print(
            f"[dim]note: the server does not tell its --dtype; config.json's {passport.dtype} is"
            " taken[/]",
            highlight=False,
        )


def make_table(*columns: str, left: int = 1) -> Table:
    """The first `left` columns to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def show(out: Console, title: str, table: Table) -> None:
    """A table under its title, which may be wider than it."""
    out.print()
    out.print(f"[italic]{escape(title)}[/]", highlight=False)
    out.print(table)


def _groups(passport: Passport) -> Table:
    columns = ("layers", "what they keep", "grows", "per token", "at most", "fixed")
    table = make_table(*columns, left=2)
    table.columns[0].justify = "right"
    for group in passport.groups:
        table.add_row(
            str(group.num_layers),
            f"[bold]{group.kind.value}[/]: {escape(group.shape)}",
            _growth(group),
            size_text(group.bytes_per_token) if group.bytes_per_token else "-",
            size_text(group.window_bytes) if group.window_bytes else "-",
            size_text(group.fixed_bytes) if group.fixed_bytes else "-",
        )
    return table


def _growth(group: Group) -> str:
    if group.grows:
        return "[red]yes[/]"
    if group.window_tokens is not None:
        return f"to {group.window_tokens:,}"
    return "[green]no[/]"


def _lines(passport: Passport) -> Iterator[str]:
    growing, fixed = passport.growth_bytes_per_token, passport.fixed_bytes
    yield f"bytes per token     {_both(passport.bytes_per_token)}"
    if growing != passport.bytes_per_token:
        yield f"  beyond windows    {_both(growing)}"
    if fixed:
        yield f"fixed per sequence  {_both(fixed)}"
    if passport.serving.tensor_parallel > 1:
        yield _per_device(passport)
    block = size_text(passport.block_tokens * passport.bytes_per_token)
    is_raised = passport.block_tokens != passport.serving.block_tokens
    raised = ", raised by vLLM to hold a state" if is_raised else ""
    yield f"block               {passport.block_tokens} tokens{raised}: {block} over all layers"
    parameters, weights = passport.weights.parameters, passport.weights
    is_sparse = parameters.active != parameters.total
    active = f", {parameters.active / 1e9:.2f} billion active" if is_sparse else ""
    yield f"parameters          {parameters.total:,}{active} (computed from the config)"
    yield f"weights             {size_text(weights.bytes)} ({weights.description})"


def _both(num_bytes: float) -> str:
    return f"{num_bytes:,.0f} ({size_text(num_bytes)})"


def _per_device(passport: Passport) -> str:
    groups = passport.device_groups
    text = f"on each of {passport.serving.tensor_parallel:<2} GPUs  "
    text += f"{size_text(sum(group.bytes_per_token for group in groups))} per token"
    fixed = sum(group.fixed_bytes for group in groups)
    return f"{text}, {size_text(fixed)} fixed" if fixed else text


def _contexts(
    passport: Passport, roofline: Roofline | None, contexts: Sequence[int]
) -> tuple[str, Table]:
    if roofline is None:
        table = make_table("tokens", "state", left=0)
        for context in contexts:
            table.add_row(f"{context:,}", size_text(passport.footprint.bytes_for(context)))
        return "What a context takes", table
    device = roofline.accelerator.name
    title = f"Bounds on {roofline.num_devices} x {device}, one session (a real engine is slower)"
    columns = ("tokens", "state", "prefill", "prefill >=", "FLOP/byte", "decode <=")
    table = make_table(*columns, left=0)
    for point in roofline.points:
        table.add_row(
            f"{point.context_tokens:,}",
            size_text(point.kv_bytes),
            number_text(point.prefill_flops, "FLOP"),
            seconds_text(point.prefill_s),
            f"{point.intensity:.3g}",
            _rate(point.tokens_per_s),
        )
    return title, table


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 1000 else 1}f} tok/s"


def _bounds(roofline: Roofline) -> str:
    device = roofline.accelerator
    needed = roofline.points[0]
    bound = "reading memory" if needed.intensity < device.ridge else "arithmetic"
    return (
        f"{device.name}: {number_text(device.flops_per_s, 'FLOP/s')} dense 16-bit over"
        f" {number_text(device.bytes_per_s, 'B/s')} is a ridge of {device.ridge:.4g} FLOP/byte:"
        f" decode is bound by {bound}"
    )


def _notes(passport: Passport) -> Iterator[str]:
    for name, value in passport.assumed.items():
        yield f"note: config.json leaves out {name}; the architecture's own {value} is taken"
    for note in passport.notes:
        yield f"note: {note}"
