"""Seconds to bring a session's KV back, by reloading it or by computing it again.

What: a prefill curve and two link speeds, all learned from the running engine, and the break-even
rule on top. Why: the choice between hold, swap and recompute is a comparison of these seconds; a
figure from a data sheet would be wrong on the next machine. Where: the controller feeds it
engine-step timings and finished copies and asks it for prices when a turn ends in a tool call.
Owned by the scheduler thread; nothing here blocks, raises on bad measurements or returns NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.geometry import attended_pairs

# Units that bring the three features of a prefill to the same order of magnitude.
_TOKENS_UNIT = 1024.0
_PAIRS_UNIT = 2.0**25

_HUBER_WIDTH = 2.5  # residuals beyond this many mean absolute residuals lose weight
_MIN_SPREAD = 0.02  # timings are never trusted to better than 2 %
_PRIOR_SIGMA_S = (0.1, 1.0, 1.0)
_STEPS_TO_FORGET = 20.0  # in each of the three directions
_STEPS_TO_JUDGE = 20.0  # until residuals that stay large are taken for the new normal

# A step outside these is a broken clock or counter, not a measurement.
_STEP_S_RANGE = (1e-7, 3600.0)
_TOKENS_RANGE = (0.5, 1e8)
_PAIRS_RANGE = (0.5, 1e16)

_HORIZON_BYTES = 64 * 2**20
_LOAD_SHARE = 0.1
_MAX_LINK_JUMP = 8.0
_COPY_BYTES_RANGE = (0.5, 1e18)
_S_PER_BYTE_RANGE = (1e-15, 1.0)


def _is_within(value: float, bounds: tuple[float, float]) -> bool:
    """False for NaN as well, and safe for integers that no float can hold."""
    return bounds[0] <= value <= bounds[1]


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


@dataclass(frozen=True, slots=True)
class PrefillCoefficients:
    """step_s + token_s·new + pair_s·pairs seconds for one engine step."""

    step_s: float
    token_s: float
    pair_s: float

    def seconds(self, num_steps: float, new_tokens: float, pairs: float) -> float:
        return self.step_s * num_steps + self.token_s * new_tokens + self.pair_s * pairs


NEUTRAL_PREFILL = PrefillCoefficients(step_s=0.0, token_s=1e-3, pair_s=0.0)
"""Before the first observation: 1,000 tokens/s. Slow on purpose, so that recompute looks dear and a
policy prefers to hold or swap; `PrefillCurve.num_observations == 0` marks it as a guess."""


class PrefillCurve:
    """Learns t = a + b·new + c·pairs from the timings of prefill steps.

    Recursive least squares with directional forgetting (Cao and Schwartz 2000): a step makes the
    curve forget only what that step tells anew, so hours of short prompts do not wipe out what one
    long context taught about c. Each step counts in proportion, not in absolute seconds, and
    residuals are Huber-weighted, so a garbage collection or a compile step hardly moves the curve.
    """

    def __init__(self, prior: PrefillCoefficients = NEUTRAL_PREFILL) -> None:
        self.num_observations = 0
        self._theta = [
            prior.step_s,
            prior.token_s * _TOKENS_UNIT,
            prior.pair_s * _PAIRS_UNIT,
        ]
        self._information = [
            [_PRIOR_SIGMA_S[i] ** -2 if i == j else 0.0 for j in range(3)] for i in range(3)
        ]
        self._spread = 1.0
        self._coefficients: PrefillCoefficients | None = prior

    def observe(self, *, new_tokens: int, pairs: float, seconds: float) -> None:
        """Learn from one engine step that prefilled `new_tokens`; nonsense is ignored.

        `pairs` sums the attended positions over the new tokens (`geometry.attended_pairs`). Leave
        out steps that only decode: they are bound by memory, not by prefill work.
        """
        if not (
            _is_within(new_tokens, _TOKENS_RANGE)
            and _is_within(pairs, _PAIRS_RANGE)
            and _is_within(seconds, _STEP_S_RANGE)
        ):
            return
        features = [1.0, new_tokens / _TOKENS_UNIT, pairs / _PAIRS_UNIT]
        predicted = sum(t * f for t, f in zip(self._theta, features, strict=True))
        # The geometric mean makes twice too slow and twice too fast count alike.
        scale = math.sqrt(seconds * max(predicted, 0.01 * seconds))
        residual = (seconds - predicted) / scale
        weight = self._weigh(abs(residual)) / scale**2
        self._forget(features)
        self._add(features, weight)
        gain = _solve(self._information, features)
        error = weight * (seconds - predicted)
        self._theta = [t + g * error for t, g in zip(self._theta, gain, strict=True)]
        self._coefficients = None
        self.num_observations += 1

    def seconds(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds of one step that computes `new_tokens` on top of `cached_tokens`."""
        if new_tokens <= 0:
            return 0.0
        pairs = attended_pairs(new_tokens, max(0, cached_tokens))
        return self.coefficients.seconds(1, new_tokens, pairs)

    @property
    def coefficients(self) -> PrefillCoefficients:
        """The current fit; each is finite and at least 0."""
        if self._coefficients is None:
            step, kilotoken, pair = _nearest_nonnegative(self._theta, self._information)
            self._coefficients = PrefillCoefficients(
                step, kilotoken / _TOKENS_UNIT, pair / _PAIRS_UNIT
            )
        return self._coefficients

    def _weigh(self, residual: float) -> float:
        """Huber weight, and the running mean absolute residual that sets its width."""
        limit = _HUBER_WIDTH * self._spread
        pace = max(1 / (self.num_observations + 1), 1 / _STEPS_TO_JUDGE)
        self._spread += pace * (min(residual, limit) - self._spread)
        self._spread = max(self._spread, _MIN_SPREAD)
        return 1.0 if residual <= limit else limit / residual

    def _forget(self, features: list[float]) -> None:
        info = self._information
        along = [sum(info[i][j] * features[j] for j in range(3)) for i in range(3)]
        norm = sum(a * f for a, f in zip(along, features, strict=True))
        for i in range(3):
            for j in range(3):
                info[i][j] -= along[i] * along[j] / (norm * _STEPS_TO_FORGET)

    def _add(self, features: list[float], weight: float) -> None:
        for i in range(3):
            for j in range(3):
                self._information[i][j] += weight * features[i] * features[j]


def _solve(matrix: Sequence[Sequence[float]], rhs: Sequence[float]) -> list[float]:
    """Gaussian elimination with pivoting for at most three unknowns; numpy costs more here."""
    size = len(rhs)
    rows = [[*matrix[i], rhs[i]] for i in range(size)]
    for col in range(size):
        best = max(range(col, size), key=lambda r: abs(rows[r][col]))
        rows[col], rows[best] = rows[best], rows[col]
        for below in range(col + 1, size):
            factor = rows[below][col] / rows[col][col]
            for k in range(col, size + 1):
                rows[below][k] -= factor * rows[col][k]
    out = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][k] * out[k] for k in range(i + 1, size))
        out[i] = (rows[i][size] - known) / rows[i][i]
    return out


def _nearest_nonnegative(
    theta: Sequence[float], information: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """The point with no negative part that fits the data best (least squares over active sets)."""
    best, best_fit = (0.0, 0.0, 0.0), -math.inf
    gradient = [sum(information[i][j] * theta[j] for j in range(3)) for i in range(3)]
    for free in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        pull = [gradient[i] for i in free]
        part = _solve([[information[i][j] for j in free] for i in free], pull)
        fit = sum(p * q for p, q in zip(pull, part, strict=True))
        if min(part) >= 0 and fit > best_fit:
            full = dict(zip(free, part, strict=True))
            best, best_fit = (full.get(0, 0.0), full.get(1, 0.0), full.get(2, 0.0)), fit
    return best


class LinkSpeed:
    """Speed of one copy direction: a measured start value, kept current by finished copies.

    The mean is over seconds per byte, weighted by bytes, so it predicts the time of large copies.
    """

    def __init__(self, initial_bytes_per_s: float, latency_s: float = 0.0) -> None:
        """Raises ValueError unless the start value is at least 1 byte/s and the latency 0 s."""
        if not (1 <= initial_bytes_per_s < math.inf and 0 <= latency_s < math.inf):
            raise ValueError(f"no link has {initial_bytes_per_s} bytes/s, {latency_s} s latency")
        self.latency_s = latency_s
        self._s_per_byte = _clamp(1 / initial_bytes_per_s, _S_PER_BYTE_RANGE)

    @property
    def bytes_per_s(self) -> float:
        return 1 / self._s_per_byte

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from one finished copy; nonsense is ignored, and no copy counts as a jump of over
        8x, so that a stalled one cannot poison the speed."""
        if not (_is_within(num_bytes, _COPY_BYTES_RANGE) and _is_within(seconds, _STEP_S_RANGE)):
            return
        # A latency set too high must not make a copy look instant.
        sample = max(seconds - self.latency_s, seconds / 10) / num_bytes
        now = self._s_per_byte
        sample = _clamp(sample, (now / _MAX_LINK_JUMP, now * _MAX_LINK_JUMP))
        share = -math.expm1(-num_bytes / _HORIZON_BYTES)
        self._s_per_byte = _clamp(now + share * (sample - now), _S_PER_BYTE_RANGE)

    def seconds(self, num_bytes: float) -> float:
        """Seconds for a copy of that size; 0 for an empty one."""
        return self.latency_s + num_bytes * self._s_per_byte if num_bytes > 0 else 0.0


class CostModel:
    """The prefill curve and both links of one engine, asked together."""

    def __init__(
        self,
        prefill: PrefillCurve,
        load_link: LinkSpeed,
        store_link: LinkSpeed,
        *,
        max_step_tokens: int = 8192,
    ) -> None:
        """`max_step_tokens`: the most tokens the engine prefills in one step."""
        self.prefill = prefill
        self.load_link = load_link
        self.store_link = store_link
        self.max_step_tokens = max_step_tokens
        self.load_overhead_s = 0.0

    def observe_load(self, kv_bytes: float, seconds: float) -> None:
        """Learn from one load as its turn saw it, from getting blocks to being ready to run.

        What the copy does not explain are the engine's steps around it: `load_overhead_s`, a mean
        over the last dozen loads to which one outlier counts no more than 8 times the mean.
        """
        if not (_is_within(seconds, _STEP_S_RANGE) and kv_bytes > 0):
            return
        sample = max(0.0, seconds - self.load_link.seconds(kv_bytes))
        if self.load_overhead_s > 0:
            sample = min(sample, _MAX_LINK_JUMP * self.load_overhead_s)
        share = _LOAD_SHARE if self.load_overhead_s > 0 else 1.0
        self.load_overhead_s += share * (sample - self.load_overhead_s)

    def recompute_s(
        self, context_tokens: int, cached_tokens: int = 0, max_step_tokens: int | None = None
    ) -> float:
        """Seconds the next turn takes longer when its context must be computed again.

        `cached_tokens` of the context are still there. The turn runs one step anyway for its own
        new tokens, so only the share of further steps is charged: new / max_step_tokens.
        """
        new_tokens = context_tokens - max(0, cached_tokens)
        if new_tokens <= 0:
            return 0.0
        num_steps = new_tokens / max(1, max_step_tokens or self.max_step_tokens)
        pairs = attended_pairs(new_tokens, max(0, cached_tokens))
        return self.prefill.coefficients.seconds(num_steps, new_tokens, pairs)

    def reload_s(self, kv_bytes: float) -> float:
        """Seconds until a turn can run whose KV, that many bytes, has to come from DRAM."""
        return self.load_overhead_s + self.load_link.seconds(kv_bytes) if kv_bytes > 0 else 0.0

    def store_s(self, kv_bytes: float) -> float:
        """Seconds to store that many bytes to DRAM."""
        return self.store_link.seconds(kv_bytes)

    def min_load_tokens(self, bytes_per_token: float, fixed_bytes: float = 0) -> float:
        """The shortest hit worth loading: from here on `reload_s` < `recompute_s`; inf if never.

        Solves c·n²/2 + (b + c/2 + a/step - m/B)·n = overhead + latency + fixed/B for n.
        """
        fit, link = self.prefill.coefficients, self.load_link
        start_s = self.load_overhead_s + link.latency_s + fixed_bytes / link.bytes_per_s
        half_c = fit.pair_s / 2
        slope_s = fit.token_s + half_c + fit.step_s / self.max_step_tokens
        slope_s -= bytes_per_token / link.bytes_per_s
        if half_c == 0:
            crossing = start_s / slope_s if slope_s > 0 else math.inf
        else:
            root = math.sqrt(slope_s**2 + 4 * half_c * start_s)
            crossing = (root - slope_s) / (2 * half_c)
            if slope_s > 0:  # the same root without a difference of near-equal numbers
                crossing = 2 * start_s / (slope_s + root)
        return math.floor(crossing) + 1 if math.isfinite(crossing) else math.inf


@dataclass(frozen=True, slots=True)
class Prices:
    """What a byte-second costs, in units of a byte-second of fully contended GPU memory.

    `hbm` is 0 when nobody waits for blocks: held blocks are then free.
    """

    hbm: float
    dram: float


def break_even_wait_s(transfer_s: float, prices: Prices, stall_s: float = 0.0) -> float:
    """`break_even_s` for transfers whose seconds are known."""
    if prices.hbm <= prices.dram:
        return math.inf
    return transfer_s * prices.hbm / (prices.hbm - prices.dram) + stall_s


def break_even_s(
    kv_bytes: float,
    bytes_per_s: float,
    prices: Prices,
    *,
    transfers: int = 2,
    stall_s: float = 0.0,
) -> float:
    """The wait at which hold and swap cost alike; inf when GPU memory is no dearer than DRAM.

    T* = (transfers·M/B)·μ_HBM/(μ_HBM - μ_DRAM) + stall, from μ_HBM·M·T against the transfers plus
    μ_DRAM·M·T. `transfers` is 1 where the KV was stored while it was computed.
    """
    return break_even_wait_s(transfers * kv_bytes / bytes_per_s, prices, stall_s)


def hold_cost_byte_s(kv_bytes: float, wait_s: float) -> float:
    """C_hold = M_KV·T_wait: byte-seconds of pool taken from everybody else."""
    return kv_bytes * wait_s


def swap_feasible(wait_s: float, kv_bytes: float, bytes_per_s: float) -> bool:
    """T_wait > 2·M_KV/B: out and back fit in the wait."""
    return wait_s > 2 * kv_bytes / bytes_per_s


def prefetch_start_s(
    min_wait_s: float, reload_s: float = 0.0, guard_fraction: float = 0.1
) -> float:
    """When in a wait to begin the reload, so that it is done before the earliest return.

    `min_wait_s` is the tool's known lower bound; the reload begins a tenth of it early, or earlier
    still where the reload itself takes longer.
    """
    return max(0.0, min(min_wait_s * (1 - guard_fraction), min_wait_s - reload_s))
