"""What a resume costs by where the KV was: in the pool, in DRAM, or nowhere; with and without.

    with the plugin:  hold = resumed from the pool        swap      = pushed out, back from DRAM
                      prefetched = pushed out, and back in the pool before the turn
                      resident = never pushed out, after as long a wait as prefetched
    without:          local_hit = vLLM's own prefix hit    recompute = pushed out, prefilled again

All of them on the same contexts, visit by visit: a visit is one round on one server, with several
resumes from the pool (short, so many are needed for a steady median) and one from elsewhere; the
servers take turns in a seeded order. Why a rest between visits: vLLM's processes spin for a second
after their last message, and on a small machine the idle server would slow the other one down.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from agentkv.demo.client import Message, TurnRequest, TurnResult, send
from agentkv.demo.ledger_file import LedgerPause
from agentkv.demo.replay import REQUEST_TIMEOUT_S
from agentkv.demo.text import FillText

CONTEXT_TOKENS = 4200
ADDED_TOKENS = 24
WARM_UP = -1  # the number of the round that is not counted
MAX_TOKENS = 2
OTHERS_TOKENS = 16  # so many that the first of the others still answers when the last one starts
REST_S = 1.1
# A pushed-out context should be gone: this share may still be found without spoiling the round.
GONE_SHARE = 0.05
NEAR_RESUMES = 5  # of a visit
# Between the signal that the tool is done and the turn: much longer than the load takes. A server
# that rested so long answers a millisecond later: a prefetched turn is held against one like it.
PREPARE_S = 0.3
# Much longer than any tool of the round: says that the session will not need its blocks soon.
LONG_WAIT_S = 600.0
OTHERS_WAIT_S = 300.0
SHORT_WAIT_S = 0.05  # what the fast tools of the recorded sessions take

PLUGIN, STOCK = "plugin", "stock"
PREFETCHED, RESIDENT = "prefetched", "resident"
KINDS = {PLUGIN: ("hold", "swap"), STOCK: ("local_hit", "recompute")}


@dataclass(frozen=True, slots=True)
class RatioPlan:
    """How many rounds, over a pool of how many tokens in blocks of how many."""

    seed: int
    num_rounds: int
    pool_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class RatioSample:
    """One measured resume, after the pause that turn `turn` of a round's session ended with.

    `problem` says why it is not what it claims to be, None when it is.
    """

    kind: str
    round: int
    turn: int
    result: TurnResult
    known_tokens: int
    problem: str | None = None


class RatioRounds:
    """Runs the visits; owned by the caller's thread, which it blocks."""

    def __init__(self, plan: RatioPlan, fill: FillText, urls: Mapping[str, str]) -> None:
        self._plan = plan
        self._fill = fill
        self._urls = urls
        self._rng = random.Random(f"{plan.seed}/ratios")
        self._numbers = itertools.count()  # of the others, who never come twice

    def run(self, on_round: Callable[[int, int], None]) -> list[RatioSample]:
        """All samples, unchecked; `on_round(done, total)` after each round.

        Raises RequestError or httpx.HTTPError when a request fails.
        """
        samples: list[RatioSample] = []
        clients = {
            name: httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_S)
            for name, url in self._urls.items()
        }
        for name in clients:  # The first requests of a server pay for what is set up lazily.
            self._visit(clients[name], name, WARM_UP)
        for number in range(self._plan.num_rounds):
            for name in self._rng.sample(list(clients), len(clients)):
                time.sleep(REST_S)
                samples += self._visit(clients[name], name, number)
            on_round(number + 1, self._plan.num_rounds)
        for client in clients.values():
            client.close()
        time.sleep(REST_S)
        return samples

    def _visit(self, client: httpx.Client, name: str, number: int) -> list[RatioSample]:
        """Resumes a context from the pool, again and again; pushes it out, and resumes it."""
        near, far = KINDS[name]
        turns = [self._send(client, number, 0, _pause(SHORT_WAIT_S))]
        for step in range(1, NEAR_RESUMES + 1):
            is_last_near = step == NEAR_RESUMES
            time.sleep(PREPARE_S if is_last_near else SHORT_WAIT_S)
            wait_s = LONG_WAIT_S if is_last_near else SHORT_WAIT_S
            turns.append(self._send(client, number, step, _pause(wait_s)))
        others = self._push_out(client, number)
        is_last = name == STOCK
        rested = near if is_last else RESIDENT
        tags = {"last_turn": True} if is_last else _pause(LONG_WAIT_S)
        turns.append(self._send(client, number, len(turns), tags))
        kinds = [near] * (NEAR_RESUMES - 1) + [rested, far]
        if not is_last:
            self._tell(client, "end", others)
            others = self._push_out(client, number)
            self._tell(client, "end", others)
            self._tell(client, "resume", [session_name(number)])
            time.sleep(PREPARE_S)
            turns.append(self._send(client, number, len(turns), {"last_turn": True}))
            kinds.append(PREFETCHED)
        return [
            RatioSample(kind, number, turn, turns[turn + 1], turns[turn].prompt_tokens)
            for turn, kind in enumerate(kinds)
        ]

    def _tell(self, client: httpx.Client, event: str, sessions: Sequence[str]) -> None:
        events = [{"event": event, "session_id": name} for name in sessions]
        client.post("/v1/agentkv/events", json={"events": events}).raise_for_status()

    def _push_out(self, client: httpx.Client, number: int) -> list[str]:
        """Other sessions take the whole pool and pause; returns their names.

        They run at the same time: one after the other, the plugin would give each the blocks of
        the one before and leave the paused context alone. They stay, or the plugin would bring the
        context back into the room they leave.
        """
        plan = self._plan
        num_others = round(plan.pool_tokens / CONTEXT_TOKENS)
        size = plan.pool_tokens // num_others - OTHERS_TOKENS - 2 * plan.block_size
        names = [f"other-{number}-{next(self._numbers)}" for _ in range(num_others)]
        requests = [
            TurnRequest(
                name, [self._long_message(name, size)], OTHERS_TOKENS, _pause(OTHERS_WAIT_S)
            )
            for name in names
        ]
        with ThreadPoolExecutor(num_others) as threads:
            list(threads.map(lambda request: send(client, request), requests))
        return names

    def _send(
        self, client: httpx.Client, number: int, step: int, tags: Mapping[str, object]
    ) -> TurnResult:
        messages = [self._long_message(session_name(number), CONTEXT_TOKENS)]
        for earlier in range(step):
            key = f"{self._plan.seed}/{number}/{earlier}"
            messages.append({"role": "assistant", "content": "I will run the tests."})
            messages.append({"role": "user", "content": self._fill.cut(ADDED_TOKENS, key)})
        return send(client, TurnRequest(session_name(number), messages, MAX_TOKENS, tags))

    def _long_message(self, name: str, num_tokens: int) -> Message:
        text = self._fill.cut(num_tokens, f"{self._plan.seed}/{name}")
        return {"role": "user", "content": f"Task {name}.\n{text}"}


def _pause(expected_wait_s: float) -> dict[str, object]:
    return {"tool": "ratio", "expected_wait_s": expected_wait_s}


def session_name(number: int) -> str:
    """The session id of a round."""
    return f"ratio-{number}"


def check_samples(
    samples: Sequence[RatioSample],
    pauses: Mapping[tuple[str, int], LedgerPause],
    block_size: int,
) -> list[RatioSample]:
    """The samples with `problem` filled in from the server's counts and the plugin's ledger."""
    return [
        RatioSample(
            sample.kind,
            sample.round,
            sample.turn,
            sample.result,
            sample.known_tokens,
            _problem(sample, pauses, block_size),
        )
        for sample in samples
    ]


def _problem(
    sample: RatioSample, pauses: Mapping[tuple[str, int], LedgerPause], block_size: int
) -> str | None:
    reusable = sample.known_tokens // block_size * block_size
    cached = sample.result.cached_tokens
    if sample.kind == "recompute":
        return f"{cached} tokens were still cached" if cached > GONE_SHARE * reusable else None
    if cached < reusable - block_size:
        return f"only {cached} of {reusable} tokens were found"
    if sample.kind == "local_hit":
        return None
    tier = "dram" if sample.kind == "swap" else "gpu"
    pause = pauses.get((session_name(sample.round), sample.turn))
    if pause is None or pause.resume is None:
        return "the ledger has no resume for it"
    resume = pause.resume
    hit_tokens = resume.gpu_hit_tokens if tier == "gpu" else resume.dram_hit_tokens
    if hit_tokens < (1 - GONE_SHARE) * reusable:
        return f"{hit_tokens} of {reusable} tokens came from {tier}"
    return None
