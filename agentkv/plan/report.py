"""A plan as tables of at most 100 letters, each with its assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from agentkv.passport.report import make_table, show
from agentkv.passport.text import bytes_text, number_text, seconds_text
from agentkv.plan.planning import Answer
from agentkv.plan.simulated import Tail
from agentkv.plan.tiers import TierValue


def print_plan(answer: Answer, out: Console) -> None:
    """Node, sessions, the same by context and accelerator, break-even waits, tiers."""
    for line in (*_node(answer), *_sessions(answer)):
        out.print(line, highlight=False)
    show(out, *_envelope(answer))
    show(out, *_break_evens(answer))
    for line in _break_even_notes(answer):
        out.print(line, highlight=False)
    if answer.tiers:
        show(out, *_tiers(answer.tiers, answer.question.gpu_price))
        out.print(_TIER_NOTE, highlight=False)
    elif answer.question.tiers:
        out.print("[dim]what tiers are worth depends on the waits: give --wait or --trace[/]")


def _node(answer: Answer) -> Iterator[str]:
    question, node = answer.question, answer.question.node
    passport = question.passport
    replicas = f", {node.num_replicas} replicas" if node.num_replicas > 1 else ""
    yield f"[bold]{passport.name}[/] on {node.num_devices} x {node.accelerator.name}" + (
        f" (tp {node.tensor_parallel}, pp {node.pipeline_parallel}{replicas})"
    )
    yield (
        f"a device   {bytes_text(node.hbm_bytes)} less {bytes_text(node.device_weights_bytes)} of"
        f" weights and {bytes_text(node.runtime_bytes)} of runtime:"
        f" {bytes_text(node.device_pool_bytes)}"
    )
    yield (
        f"KV pool    {bytes_text(node.pool_bytes)}, {answer.capacity.token_capacity:,} tokens"
        f" after {100 * question.demand.headroom:.0f} % of headroom"
    )


def _sessions(answer: Answer) -> Iterator[str]:
    demand, capacity = answer.question.demand, answer.capacity
    text = f"{demand.context.mean:,.0f}"
    if not demand.context.is_constant:
        text += f" on average (p95 {demand.context.quantile(0.95):,.0f})"
    text += f" + {demand.output_tokens:,} tokens"
    if demand.shared_tokens:
        text += f", {demand.shared_tokens:,} of them shared by all"
    if demand.forks > 1:
        text += f", {demand.forks} branches"
    yield f"a session  {text}: {bytes_text(capacity.private_bytes)} of its own"
    sure = ""
    if not demand.context.is_constant:
        sure = f" on average, {capacity.sure_sessions:,} with 95 % probability"
    yield f"[bold]fit        {capacity.sessions:,} sessions in GPU memory{sure}[/]"
    if answer.tier_sessions:
        yield (
            f"           and {answer.tier_sessions:,} more in the tiers while they pause (room;"
            " --simulate tells what turns wait)"
        )
    yield (
        f"blocks     of {answer.question.passport.block_tokens} tokens leave"
        f" {100 * capacity.tail_waste:.2g} % of what is allocated empty"
    )


def _envelope(answer: Answer) -> tuple[str, Table]:
    rows = answer.envelope
    node = answer.question.node
    title = f"Sessions by context, {node.num_devices} devices of each kind, the rest the same"
    table = make_table("context", *(row.accelerator for row in rows), left=0)
    for context, _ in answer.by_context:
        found = [dict(row.sessions).get(context) for row in rows]
        table.add_row(f"{context:,}", *("-" if n is None else f"{n:,}" for n in found))
    pools = ["no room" if not row.pool_bytes else bytes_text(row.pool_bytes) for row in rows]
    table.add_section()
    table.add_row("KV pool", *pools)
    return title, table


def _break_evens(answer: Answer) -> tuple[str, Table]:
    resume = answer.resume
    rest = " beside what all share" if resume.shared_tokens else ""
    title = (
        f"A pause at {resume.context_tokens:,.0f} tokens ({bytes_text(resume.kv_bytes)}{rest}):"
        f" computing it again takes {seconds_text(resume.recompute_s)}"
    )
    columns = ["link", "GB/s", "reload", "round trip", "break-even", "stored*", "of recompute"]
    if answer.question.waits is not None:
        columns += ["pauses", "held time"]
    table = make_table(*columns)
    for row in answer.links:
        times = (row.reload_s, row.round_trip_s, row.break_even_s, row.stored_break_even_s)
        shares = [] if row.pauses is None else [f"{100 * row.pauses:.3g} %"]
        shares += [] if row.held is None else [f"{100 * row.held:.3g} %"]
        is_own = row.link.name == answer.question.node.accelerator.link
        table.add_row(
            f"[bold]{row.link.name}[/]" if is_own else row.link.name,
            f"{row.bytes_per_s / 1e9:.4g}",
            *(seconds_text(each) for each in times),
            _speedup(row.speedup),
            *shares,
        )
    return title, table


def _speedup(ratio: float) -> str:
    return f"{ratio:.3g}x faster" if ratio >= 1 else f"[red]{1 / ratio:.3g}x slower[/]"


def _break_even_notes(answer: Answer) -> Iterator[str]:
    question = answer.question
    yield (
        f"[dim]prefill at {100 * question.mfu:.3g} % of the peak; a byte in DRAM costs"
        f" {question.dram_price:g} of one in contended GPU memory; drives and networks are the"
        " node's, links to the host each device's[/]"
    )
    yield "[dim]* as vLLM stores KV while it is computed: one transfer instead of two[/]"
    if question.waits is not None:
        waits = question.waits
        yield (
            f"[dim]waits: mean {seconds_text(waits.mean)}, p50 {seconds_text(waits.quantile(0.5))},"
            f" p99 {seconds_text(waits.quantile(0.99))}; pauses, held time: share of them beyond"
            " the stored break-even[/]"
        )


_TIER_NOTE = (
    "[dim]a tier full of pauses beyond its break-even; loads take no GPU time; saved is the"
    " recompute on all devices of a replica; a turn: its rent in the tier / its recompute[/]"
)


def _tiers(values: Sequence[TierValue], gpu_price: float | None) -> tuple[str, Table]:
    unit = "1" if gpu_price is None else f"{gpu_price:g}"
    title = f"What tiers are worth, at {unit} a GPU-hour"
    columns = ("tier", "over", "size", "sessions", "reload", "GPU-s saved", "a turn", "link busy")
    table = make_table(*columns, "worth it")
    for value in values:
        tier = value.tier
        cost = "-" if value.turn_cost is None else f"{value.turn_cost:.2g}"
        table.add_row(
            tier.name,
            tier.link.name,
            bytes_text(tier.size_bytes) if tier.size_bytes else "any",
            f"{value.sessions:,}" if tier.size_bytes else "-",
            seconds_text(value.reload_s),
            f"{value.saved_gpu_s:.3g}",
            f"{cost} / {value.recompute_cost:.2g}",
            _link_share(value) if tier.size_bytes else "-",
            value.verdict,
        )
    return title, table


def _link_share(value: TierValue) -> str:
    return f"{100 * min(1.0, value.link_share):.3g} %"


def print_tails(tails: Sequence[Tail], num_sessions: int, hours: float, out: Console) -> None:
    """The simulated answer."""
    title = f"Simulated, {hours:g} h of {num_sessions} recorded sessions played over and over"
    columns = ("agents", "policy", "turns/h", "TTFT p50", "p95", "p99", "stall p95")
    table = make_table(*columns, "recomputed", "GPUs busy")
    before = None
    for tail in tails:
        times = (tail.ttft_p50_s, tail.ttft_p95_s, tail.ttft_p99_s, tail.stall_p95_s)
        table.add_row(
            f"{tail.sessions:,}" if tail.sessions != before else "",
            tail.policy,
            number_text(tail.turns_per_hour),
            *(seconds_text(each) for each in times),
            f"{100 * tail.recomputed_share:.3g} %",
            f"{100 * tail.busy_share:.0f} %",
        )
        before = tail.sessions
    show(out, title, table)
    out.print(
        "[dim]TTFT: of resumed turns; stall: what of it new tokens alone on an idle engine would"
        " not take: queue, load, KV computed again, others' prefills[/]",
        highlight=False,
    )
