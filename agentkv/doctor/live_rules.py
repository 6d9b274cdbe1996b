"""What the numbers of a server mean: one function for each thing that can be wrong.

Each says nothing where there is too little to judge by. The limits are ours, chosen so that a
server on its first requests is not called ill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv import metrics
from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.doctor.prometheus_text import Samples, by_label, difference, total
from agentkv.metrics import Kind, Metric

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
SUCCESSES = "vllm:request_success_total"
STORED, LOADED = "vllm:kv_offload_store_bytes_total", "vllm:kv_offload_load_bytes_total"
CACHE_CONFIG = "vllm:cache_config_info"

_MIN_TOKENS = 2_000
_MIN_REQUESTS = 50
_MIN_PREFETCHES = 20
_MIN_STORED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Look:
    """Two looks at /metrics, a few seconds apart; the state, and the sessions one may see."""

    before: Samples
    after: Samples
    state: Mapping[str, Any]
    sessions: list[dict[str, Any]]

    def total(self, metric: Metric, **labels: str) -> float:
        return total(self.after, exposed_name(metric), **labels)

    def by(self, metric: Metric) -> dict[str, float]:
        return by_label(self.after, exposed_name(metric), metric.labels[0])

    def counted(self, name: str) -> int:
        """What the API process counts about itself."""
        value = self.state.get("endpoint", {}).get(name, 0)
        return value if isinstance(value, int) else 0


def exposed_name(metric: Metric) -> str:
    """As Prometheus sees it."""
    return f"{metric.name}_total" if metric.kind is Kind.COUNTER else metric.name


def live_rules(look: Look) -> Iterator[Check]:
    """All that there is something to say about."""
    for rule in _RULES:
        found = rule(look)
        if found is not None:
            yield found


def _again(look: Look) -> Check | None:
    """How much of what sessions had computed was computed again."""
    share = recomputed_share(look)
    if share is None:
        return None
    said = f"{share:.0%} of what resumed turns had computed before was computed again"
    if share <= 0.1:
        return ok("resumes", said)
    mend = "run `agentkv doctor LOG` on a request log; if it is silent, give KV more room"
    return fail("resumes", said, mend) if share > 0.5 else warn("resumes", said, mend)


def recomputed_share(look: Look) -> float | None:
    """Of the tokens that resumed turns had known; None where these are few."""
    sources = look.by(metrics.RESUME_TOKENS)
    known = sum(tokens for source, tokens in sources.items() if source != "new")
    return sources.get("recomputed", 0.0) / known if known >= _MIN_TOKENS else None


def _hit_rate(look: Look) -> Check | None:
    queries = total(look.after, QUERIES)
    if queries < _MIN_TOKENS:
        return None
    rate = total(look.after, HITS) / queries
    recent = difference(look.before, look.after, (HITS, QUERIES))
    said = f"{rate:.0%} of all prompt tokens were found in the pool since the start"
    if recent[QUERIES] < _MIN_TOKENS:
        return ok("prefix hits", said)
    now = recent[HITS] / recent[QUERIES]
    said = f"{said}, {now:.0%} in the last seconds"
    if now < 0.7 * rate:
        mend = "a client may have begun to change its prompts: `agentkv doctor LOG` tells which"
        return warn("prefix hits", f"{said}: falling", mend)
    return ok("prefix hits", said)


def _tiers(look: Look) -> Check | None:
    available = look.by(metrics.TIER_AVAILABLE)
    if not available:
        return None
    down = sorted(tier for tier, value in available.items() if value < 1)
    reasons = by_label(look.after, exposed_name(metrics.TIER_FAILURES), "reason")
    seen = ", ".join(f"{reason}: {count:,.0f}" for reason, count in sorted(reasons.items()))
    if down:
        said = f"{', '.join(down)} left alone after failures ({seen or 'none counted'})"
        return fail(
            "tiers", said, "the server's log names the first of each; it tries again itself"
        )
    if seen:
        return warn("tiers", f"all work; failures so far: {seen}", "see the server's log")
    return ok("tiers", f"{', '.join(sorted(available))}: all work, no failures")


def _room(look: Look) -> Check | None:
    """DRAM is too small where much is computed again while more is live than fits."""
    share, live = recomputed_share(look), _live_over_pool(look)
    pressure = look.total(metrics.PRESSURE)
    if share is None or share <= 0.1 or (live is not None and live <= 1 and pressure < 0.5):
        return None
    known = "" if live is None else f", the KV of its sessions is {live:.1f} times the GPU pool"
    said = f"pressure {pressure:.2f}{known}, and {share:.0%} is computed again"
    mend = "a larger dram.size_bytes, a tier below it (ssd, redis), or fewer sessions at once"
    return warn("room", said, mend)


def _live_over_pool(look: Look) -> float | None:
    """Tokens of the live sessions over those of the pool."""
    blocks = sum(int(each.get("pool_blocks") or 0) for each in look.state.get("engines", ()))
    sizes = [labels.get("block_size", "") for labels, _ in look.after.get(CACHE_CONFIG, ())]
    tokens = sum(int(each.get("context_tokens") or 0) for each in look.sessions)
    if not blocks or not sizes or not sizes[0].isdigit() or not tokens:
        return None
    return tokens / (blocks * int(sizes[0]))


def _loads(look: Look) -> Check | None:
    reasons = look.by(metrics.LOAD_FAILURES)
    timeouts = look.total(metrics.LOAD_TIMEOUTS)
    parts = [
        f"{count:,.0f} blocks refused ({reason})" for reason, count in reasons.items() if count
    ]
    parts += [f"{timeouts:,.0f} turns computed after load_timeout_s"] if timeouts else []
    if not parts:
        return None
    mend = "checksum: test this machine's memory; timeouts: a quicker tier, or min_load_tokens"
    return warn("loads", "; ".join(parts), mend)


def _prefetches(look: Look) -> Check | None:
    outcomes = look.by(metrics.PREFETCH_OUTCOMES)
    num = sum(outcomes.values())
    if num < _MIN_PREFETCHES:
        return None
    said = ", ".join(f"{count / num:.0%} {name}" for name, count in sorted(outcomes.items()))
    if outcomes.get("useful", 0.0) < num / 2:
        mend = "too little room for them: more pool, or prefetch.enabled: false; late ones: signals"
        return warn("prefetches", f"of {num:,.0f}: {said}", mend)
    return ok("prefetches", f"of {num:,.0f}: {said}")


def _recognised(look: Look) -> Check | None:
    """Agents come back: of many requests with tools most must go on from a known session."""
    requests, resumes = total(look.after, SUCCESSES), look.total(metrics.RESUMES)
    tools = look.counted("turns_tool")
    if requests < _MIN_REQUESTS or tools < _MIN_REQUESTS // 2:
        return None
    said = f"{resumes:,.0f} of {requests:,.0f} requests went on from a known session"
    if resumes >= 0.3 * tools:
        return ok("sessions", said)
    unnamed = look.counted("hints_seen") + look.counted("sessions_named") == 0
    why = ", none names its session" if unnamed else ""
    mend = "send X-Session-ID with every request; if prompts change at the head, see doctor LOG"
    return warn("sessions", f"{said}, of {tools:,} that asked for tools{why}", mend)


def _write_only(look: Look) -> Check | None:
    stored, loaded = total(look.after, STORED), total(look.after, LOADED)
    resumes = look.total(metrics.RESUMES)
    if stored < _MIN_STORED_BYTES or loaded or resumes < _MIN_REQUESTS:
        return None
    said = f"{stored / 1e9:.1f} GB went to DRAM and nothing came back in {resumes:,.0f} resumes"
    return warn("dram", said, "harmless while the pool holds all; else look at `resumes` above")


def _write_only_below(look: Look) -> Check | None:
    """What went below DRAM and never came up, though turns computed again what they had known."""
    lacking = look.by(metrics.RESUME_TOKENS).get("recomputed", 0.0)
    written, risen = look.by(metrics.DEMOTED_BLOCKS), look.by(metrics.PROMOTED_BLOCKS)
    idle = [tier for tier, num in sorted(written.items()) if num and not risen.get(tier)]
    if not idle or lacking < _MIN_TOKENS or look.total(metrics.RESUMES) < _MIN_REQUESTS:
        return None
    said = f"{', '.join(idle)}: much is written and nothing comes up, while KV is computed again"
    return warn("below dram", said, "the log of the start says why KV there may not be found")


def _hints(look: Look) -> Check | None:
    # The API process and the engine both read a tag and count its keys: they are the same keys.
    ignored = max(look.counted("hints_ignored"), look.total(metrics.TAG_PROBLEMS))
    if not ignored:
        return None
    said = f"{ignored:,.0f} keys of tags and hints were not understood"
    return warn("hints", said, "the README's table of tags has the keys and their values")


def _faults(look: Look) -> Check | None:
    places = {place: count for place, count in look.by(metrics.FAULTS).items() if count}
    problems = look.counted("problems")
    if not places and not problems:
        return ok("faults", "none inside agentkv")
    said = ", ".join(f"{place}: {count:,.0f}" for place, count in sorted(places.items()))
    said = said or f"{problems:,} in the API process"
    return fail("faults", said, "each was turned into a miss; the log has the first, please report")


_RULES = (
    _again,
    _hit_rate,
    _room,
    _tiers,
    _loads,
    _prefetches,
    _recognised,
    _write_only,
    _write_only_below,
    _hints,
    _faults,
)
