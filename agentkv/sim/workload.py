"""What the agents do: sessions in slots, their block chains, and how loaded the node is.

What: a closed loop of N slots; each plays one random session after the other, with a pause of
Exp(5 s) between two. N = oversubscription x pool / mean private KV, weighted by time. Each slot has
random numbers of its own, so every policy sees the same sessions and waits for one seed.
Two loads: `recorded` waits, or `stretched` ones, all waits times one factor such that the node
would run at 60 % of its peak turn rate if every prefix were cached: the regime pausing is about.
Where: built once per sweep (`Workload`), dealt to each run by `Slot`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentkv.errors import ConfigError
from agentkv.sim.profiles import Profile
from agentkv.sim.trace import TraceSession, TraceTurn

LOAD_SHARE = 0.6
GAP_S = 5.0
BURST_EVERY_S = 60.0
_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Options:
    """How the trace is played.

    `wrong_tags`: stated waits that are off by this factor, up or down, are sent along; `resume_s`:
    a `resume` event comes so long before each turn.
    """

    load: str = "stretched"
    block_tokens: int = 512
    has_tags: bool = True
    has_ends: bool = True
    wrong_tags: float | None = None
    is_adversarial: bool = False
    is_bursty: bool = False
    resume_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """What one run of the sweep has: `num_slots` agents whose waits are stretched by `stretch`."""

    profile: Profile
    num_slots: int
    pool_blocks: int
    dram_blocks: int
    stretch: float
    mean_private_tokens: float
    mean_turns: float

    @property
    def pressure_x(self) -> float:
        """x = live KV / (pool + DRAM)."""
        return (
            self.num_slots
            * self.mean_private_tokens
            / self.profile.pool_tokens
            / (1 + self.dram_blocks / self.pool_blocks)
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Means of a trace: tokens of prompt, private context (by time), new and answer per turn."""

    prompt_tokens: float
    private_tokens: float
    new_tokens: float
    new_position_tokens: float
    output_tokens: float
    wait_s: float
    turns: float


def measure(sessions: Sequence[TraceSession], profile: Profile) -> Totals:
    """Means over all turns; the context is weighted by the wait after it and a nominal service."""
    turns = [(session, turn) for session in sessions for turn in session.turns]
    count = len(turns)
    weight = weighted = 0.0
    for session, turn in turns:
        held_s = (turn.wait_s or 0.0) + turn.output_tokens * profile.decode_step_s * 2
        size = turn.prompt_tokens + turn.output_tokens - (session.shared_tokens or 0)
        weight += held_s
        weighted += held_s * max(0, size)
    news = [(_new_tokens(session, turn), turn) for session, turn in turns]
    total_new = sum(new for new, _ in news)
    waits = [turn.wait_s or 0.0 for s in sessions for turn in s.turns[:-1]]
    return Totals(
        prompt_tokens=sum(turn.prompt_tokens for _, turn in turns) / count,
        private_tokens=weighted / weight,
        new_tokens=total_new / count,
        new_position_tokens=sum(n * (t.prompt_tokens - n / 2) for n, t in news) / max(1, total_new),
        output_tokens=sum(turn.output_tokens for _, turn in turns) / count,
        wait_s=sum(waits) / max(1, len(waits)),
        turns=count / len(sessions),
    )


def _new_tokens(session: TraceSession, turn: TraceTurn) -> int:
    known = turn.prefix_tokens if turn.prefix_turn >= 0 else (session.shared_tokens or 0)
    return max(1, turn.prompt_tokens - known)


def plan_node(
    totals: Totals,
    profile: Profile,
    options: Options,
    *,
    oversubscription: float,
    dram_ratio: float,
) -> Node:
    """Number of slots, sizes in blocks, and how far waits are stretched."""
    num_slots = max(1, round(oversubscription * profile.pool_tokens / totals.private_tokens))
    pool_blocks = profile.pool_tokens // options.block_tokens
    stretch = 1.0
    if options.load == "stretched":
        stretch = stretch_for(totals, profile, num_slots)
    return Node(
        profile=profile,
        num_slots=num_slots,
        pool_blocks=pool_blocks,
        dram_blocks=round(dram_ratio * pool_blocks),
        stretch=stretch,
        mean_private_tokens=totals.private_tokens,
        mean_turns=totals.turns,
    )


def turn_rate(totals: Totals, profile: Profile, num_running: float) -> float:
    """Turns per second of `num_running` turns at a time, every prefix cached.

    A turn decodes its answer while the others' new tokens are prefilled in between.
    """
    read_s = profile.read_s_per_token * totals.prompt_tokens
    step_s = profile.decode_step_s + num_running * read_s
    prefill_s = profile.prefill_s(totals.new_tokens, totals.new_position_tokens)
    return num_running / (totals.output_tokens * step_s + num_running * prefill_s)


def stretch_for(totals: Totals, profile: Profile, num_slots: int) -> float:
    """The factor on waits with which the node runs at 60 % of its peak turn rate; 1 at least.

    The peak is the rate of as many turns as the pool takes; a slot's cycle is wait and service.
    """
    most_running = max(1.0, profile.pool_tokens / (totals.prompt_tokens + totals.output_tokens))
    rate = LOAD_SHARE * turn_rate(totals, profile, most_running)
    low, high = 0.0, most_running
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if turn_rate(totals, profile, middle) < rate else (low, middle)
    service_s = high / rate
    between_s = GAP_S / totals.turns
    wanted_s = num_slots / rate - service_s - between_s
    return max(1.0, wanted_s / totals.wait_s) if totals.wait_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn in blocks. `num_known`: of its prompt, those that earlier turns computed, of which
    the first `num_shared` are every session's.
    """

    turn: TraceTurn
    num_base: int
    num_shared: int
    num_known: int
    num_prompt: int
    num_full: int
    num_total: int


@dataclass(frozen=True, slots=True)
class PlannedSession:
    name: str
    shared_key: str
    turns: tuple[PlannedTurn, ...]


def plan_sessions(
    sessions: Sequence[TraceSession], block_tokens: int, *, most_tokens: float
) -> list[PlannedSession]:
    """Sessions whose largest request has at most `most_tokens`. Raises ConfigError if none has."""
    planned = [_plan(s, block_tokens) for s in sessions if s.longest_tokens <= most_tokens]
    if not planned:
        raise ConfigError(
            f"no session of the trace fits {most_tokens:,.0f} tokens; give a larger --max-context "
            "or a profile with a larger pool"
        )
    return planned


def _plan(session: TraceSession, block_tokens: int) -> PlannedSession:
    planned: list[PlannedTurn] = []
    shared = (session.shared_tokens or 0) // block_tokens
    for turn in session.turns:
        total = turn.prompt_tokens + turn.output_tokens
        num_full = (total - 1) // block_tokens  # the last token's KV is never computed
        if turn.prefix_turn >= 0:
            source = planned[turn.prefix_turn]
            num_base = min(turn.prefix_tokens // block_tokens, source.num_full, num_full)
            num_known = min(num_base, (turn.prompt_tokens - 1) // block_tokens)
        else:
            num_base = min((session.shared_tokens or 0), turn.prompt_tokens - 1) // block_tokens
            num_known = 0
        planned.append(
            PlannedTurn(
                turn=turn,
                num_base=num_base,
                num_shared=min(shared, num_known),
                num_known=num_known,
                num_prompt=turn.prompt_tokens // block_tokens,
                num_full=num_full,
                num_total=-(-total // block_tokens),
            )
        )
    return PlannedSession(session.name, session.shared_key, tuple(planned))


class Hashes:
    """Hands out block hashes; those of a shared prefix are the same for every session."""

    def __init__(self) -> None:
        self._next = 0
        self._shared: dict[str, list[bytes]] = {}

    def new(self, count: int) -> list[bytes]:
        first, self._next = self._next, self._next + count
        return [n.to_bytes(_HASH_BYTES, "big") for n in range(first, first + count)]

    def shared(self, key: str, count: int) -> list[bytes]:
        blocks = self._shared.setdefault(key, [])
        if len(blocks) < count:
            blocks.extend(self.new(count - len(blocks)))
        return blocks[:count]


class SessionRun:
    """One session being played: its chains so far."""

    def __init__(self, name: str, plan: PlannedSession, hashes: Hashes, first: int) -> None:
        self.name = name
        self.plan = plan
        self.next_turn = first
        self._hashes = hashes
        self._chains: dict[int, list[bytes]] = {}

    @property
    def is_over(self) -> bool:
        return self.next_turn >= len(self.plan.turns)

    @property
    def is_last(self) -> bool:
        return self.next_turn == len(self.plan.turns) - 1

    def chain(self, number: int) -> list[bytes]:
        """The full blocks of a turn, prompt and answer, root first."""
        path = [number]
        while path[-1] not in self._chains and self.plan.turns[path[-1]].turn.prefix_turn >= 0:
            path.append(self.plan.turns[path[-1]].turn.prefix_turn)
        for step in reversed(path):
            if step not in self._chains:
                self._chains[step] = self._make(self.plan.turns[step])
        return self._chains[number]

    def _make(self, planned: PlannedTurn) -> list[bytes]:
        source = planned.turn.prefix_turn
        if source >= 0:
            base = self._chains[source][: planned.num_base]
        else:
            base = self._hashes.shared(self.plan.shared_key, planned.num_base)
        return base + self._hashes.new(planned.num_full - planned.num_base)


class Slot:
    """One agent that runs session after session; all its random numbers are its own."""

    def __init__(
        self,
        number: int,
        sessions: Sequence[PlannedSession],
        hashes: Hashes,
        options: Options,
        *,
        seed: int,
        stretch: float,
    ) -> None:
        self.number = number
        self.options = options
        self.stretch = stretch
        self._sessions = sessions
        self._hashes = hashes
        self._random = random.Random(f"{seed}/{number}")
        self._errors = random.Random(f"{seed}/{number}/errors")
        self._num_sessions = 0
        self.run: SessionRun

    def begin_midway(self) -> float:
        """A random turn of a random session is just over; returns what is left of its wait.

        Sessions and turns are drawn in proportion to the time that their waits take.
        """
        lengths = [sum(_weights(plan)) for plan in self._sessions]
        plan = self._random.choices(self._sessions, lengths)[0]
        weights = _weights(plan)
        number = self._random.choices(range(len(weights)), weights)[0]
        self._start(plan, number)
        left_s = self._random.random() * self.wait_s(number) if len(plan.turns) > 1 else 0.0
        return left_s

    def begin_next(self, now_s: float) -> float:
        """The next session; returns the seconds until its first turn."""
        self._start(self._random.choice(self._sessions), 0)
        gap_s = self._random.expovariate(1 / GAP_S)
        if self.options.is_bursty:
            gap_s += BURST_EVERY_S - (now_s + gap_s) % BURST_EVERY_S
        return gap_s

    def wait_s(self, number: int) -> float:
        """The wait after a turn, as it is played."""
        return (self.run.plan.turns[number].turn.wait_s or 0.0) * self.stretch

    def wrong_by(self) -> float:
        """The factor by which the next stated wait is off."""
        wrong = self.options.wrong_tags or 1.0
        return wrong if self._errors.random() < 0.5 else 1 / wrong

    def _start(self, plan: PlannedSession, first: int) -> None:
        self._num_sessions += 1
        self.run = SessionRun(f"{self.number}.{self._num_sessions}", plan, self._hashes, first)


def _weights(plan: PlannedSession) -> list[float]:
    """Of each turn but the last: its wait, and a bit for what computing it takes."""
    return [0.5 + (turn.turn.wait_s or 0.0) for turn in plan.turns[:-1]] or [0.5]


def make_slots(
    sessions: Sequence[PlannedSession], options: Options, node: Node, *, seed: int
) -> Iterator[Slot]:
    """The slots of one run; they share the hashes of common prefixes."""
    hashes = Hashes()
    for number in range(node.num_slots):
        yield Slot(number, sessions, hashes, options, seed=seed, stretch=node.stretch)
