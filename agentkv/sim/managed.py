"""agentkv on the simulated machine: the real controller, and its mechanism around it.

As `connectors.scheduler_side`, event by event. The cost model knows the machine: a real engine has
measured it within some dozens of steps. What loads take around the copy it learns.
Where: every policy but `lru`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agentkv.admission import ProgramAdmission
from agentkv.appraisal import Deps, Location
from agentkv.clock import Clock
from agentkv.config import AgentKVConfig
from agentkv.controller import Controller
from agentkv.cost_model import CostModel, LinkSpeed, PrefillCoefficients, PrefillCurve
from agentkv.events import TurnTag
from agentkv.geometry import KvFootprint, KvGroup
from agentkv.ledger import Ledger, Record
from agentkv.metrics import Recorder
from agentkv.policy import PausePolicy
from agentkv.predict import WaitPredictor
from agentkv.sessions import BlockRef, SessionKey
from agentkv.sim.arrived import ArrivedTurns
from agentkv.sim.exclusive import Exclusive
from agentkv.sim.gate import Gate
from agentkv.sim.machine import Machine, Request
from agentkv.sim.offloading import Offloading
from agentkv.sim.prefetching import Prefetching
from agentkv.sim.profiles import Profile
from agentkv.sim.room import Room
from agentkv.sim.tally import Tally
from agentkv.sim.told import Told
from agentkv.sim.workload import Options

_TIDY_EVERY_S = 1.0
_TRUSTED = 1000  # steps that the prefill curve counts as measured
_IN_FLIGHT_S = 0.02
_LONG_S, _CLAIMS_S = 10.0, (0.1, 1000.0)


class SilentLedger(Ledger):
    """Keeps nothing: runs make a hundred times the records that anybody reads."""

    def record(self, kind: str, **fields: Any) -> Record:
        return {}


def config_for(profile: Profile, *, stretch: float) -> AgentKVConfig:
    """The defaults; but as much may be on its way as the link moves in 20 ms, and where waits are
    stretched, so is the time after which a pause counts as the end."""
    in_flight = int(profile.load_bytes_per_s * _IN_FLIGHT_S)
    abandon_s = AgentKVConfig().sessions.abandon_after_s * stretch
    return AgentKVConfig.model_validate(
        {
            "prefetch": {"max_in_flight_bytes": in_flight},
            "sessions": {"abandon_after_s": abandon_s},
        }
    )


def costs_of(profile: Profile) -> CostModel:
    """A cost model that has measured this machine."""
    token_s = 1 / profile.prefill_tokens_per_s
    curve = PrefillCurve(
        PrefillCoefficients(profile.prefill_step_s, token_s, token_s / profile.prefill_x0_tokens)
    )
    curve.num_observations = _TRUSTED
    return CostModel(
        curve,
        LinkSpeed(profile.load_bytes_per_s, profile.load_latency_s),
        LinkSpeed(profile.store_bytes_per_s, profile.load_latency_s),
        max_step_tokens=profile.max_step_tokens,
    )


def tag_of(request: Request, true_wait_s: float, options: Options) -> TurnTag:
    """What the client says with a turn."""
    turn = request.planned.turn
    is_last = options.has_ends and request.is_last
    if request.is_last or not options.has_tags:
        return TurnTag(session_id=request.run.name, last_turn=is_last)
    expected_s: float | None = None
    if options.wrong_tags is not None:
        expected_s = true_wait_s * request.wrong_by
    elif options.is_adversarial:
        expected_s = _CLAIMS_S[true_wait_s <= _LONG_S]
    return TurnTag(
        session_id=request.run.name,
        tool=turn.tool,
        command=turn.command,
        expected_wait_s=expected_s,
        timeout_s=None if turn.timeout_s is None else turn.timeout_s * request.stretch,
    )


class ManagedKeeper:
    """See `keeper.Keeper`."""

    def __init__(
        self,
        machine: Machine,
        tally: Tally,
        options: Options,
        *,
        policy: PausePolicy,
        predictor: WaitPredictor,
        clock: Clock,
        stretch: float = 1.0,
        has_admission: bool = True,
        config: AgentKVConfig | None = None,
    ) -> None:
        config = config or config_for(machine.profile, stretch=stretch)
        self.recorder = Recorder()
        self._machine = machine
        self._options = options
        self._told = predictor if isinstance(predictor, Told) else None
        deps = self._deps(policy, predictor, clock)
        self._costs = deps.costs
        self.controller = controller = Controller(
            config,
            deps,
            tokens_per_hash=machine.block_tokens,
            pool_blocks=machine.pool.num_blocks,
        )
        self.gate = Gate(self._admission(config, clock) if has_admission else None)
        is_told = self._told is not None
        self._running: dict[str, Request] = {}
        self._arrived = ArrivedTurns(machine)
        self._prefetching = Prefetching(machine, controller, deps, config.prefetch, tally)
        self.exclusive = Exclusive(
            machine,
            controller,
            running=self._running,
            chains=self._prefetching.chains,
            is_clairvoyant=is_told,
        )
        self._room = Room(
            machine,
            controller,
            self._arrived,
            self.exclusive,
            self._prefetching.note_given_up,
        )
        self._prefetching.room = self._room
        self._offloading = Offloading(machine)
        self._dead_in_use: list[BlockRef] = []
        self._tidied_at_s = clock.monotonic_s()
        machine.dram.before_evict = self._before_dram_evicts
        machine.dram.after_evict = self._after_dram_evicted

    # --- what the engine tells ---

    def arrived(self, request: Request, true_wait_s: float) -> None:
        self.controller.settle_evicted()
        self.controller.turn_arrived(
            request.request_id,
            name=request.run.name,
            scope="",
            hashes=request.prompt_chain,
            prompt_tokens=request.planned.turn.prompt_tokens,
            tag=tag_of(request, true_wait_s, self._options),
        )
        if self._told is not None:
            self._told.waits_s[SessionKey("", request.run.name)] = true_wait_s
        self._arrived.add(request)
        self.gate.arrived(request)
        self._room.make()

    def review(self, *, is_idle: bool) -> tuple[Sequence[Request], Sequence[Request]]:
        held, released = self.gate.review(is_idle=is_idle)
        for request in held:
            self._arrived.remove(request)
            self._let_go(request)
        for request in released:
            self._arrived.add(request)
        if held or released:
            self._room.make()
        return held, released

    def before_match(self) -> None:
        self._room.protect()

    def is_short_hit(self, num_tokens: int) -> bool:
        return num_tokens < self.controller.appraiser.min_load_tokens()

    def scheduled(self, request: Request) -> None:
        self._arrived.remove(request)
        self._offloading.scheduled(request)
        self._running[request.request_id] = request
        self.gate.started(request)
        self._room.num_running += 1
        block_tokens = self._machine.block_tokens
        turn = self.controller.sessions.turn(request.request_id)
        if turn is not None:
            self._prefetching.note_scheduled(turn, request, pause=turn.closed_pause)
        self.controller.turn_scheduled(
            request.request_id,
            gpu_hit_tokens=request.gpu_hit * block_tokens,
            dram_hit_tokens=request.dram_hit * block_tokens,
        )

    def loaded(self, request: Request) -> None:
        """Learn how long a turn waits for a load."""
        kv_bytes = request.dram_hit * self._machine.block_bytes
        self._costs.observe_load(kv_bytes, self._machine.now_s - request.admitted_s)

    def computing(self, request: Request, num_tokens: int) -> None:
        if not self._is_last(request):
            self._offloading.computing(request, num_tokens)

    def _is_last(self, request: Request) -> bool:
        """Nothing will come back for it: what it computes is not stored."""
        turn = self.controller.sessions.turn(request.request_id)
        return turn is not None and turn.tag.last_turn

    def finished(self, request: Request) -> None:
        self._room.num_running -= 1
        del self._running[request.request_id]
        self._offloading.finished(request, is_stored=not self._is_last(request))
        turn = self.controller.sessions.turn(request.request_id)
        planned = request.planned.turn
        self.controller.turn_finished(
            request.request_id,
            hashes=request.chain,
            num_tokens=planned.prompt_tokens + planned.output_tokens,
        )
        if turn is not None:
            self._prefetching.note_finished(turn.session, request.chain)
        self.gate.finished(request)
        self._arrived.note_freed(request.planned.num_total)
        self._discard_dead()
        self._room.note_change()

    def tool_done(self, session: str) -> None:
        found = self.controller.sessions.get(SessionKey("", session))
        if found is not None and found.pause is not None:
            found.pause.tool_done_s = self._machine.now_s
            self.controller.pauses.note_done(found)
            self._prefetching.note_signal()

    def recomputed(self, seconds: float) -> None:
        self.gate.recomputed(seconds)

    def after_step(self, num_steps: int) -> None:
        now_s = self._machine.now_s
        if now_s - self._tidied_at_s >= _TIDY_EVERY_S:
            self._tidied_at_s = now_s
            self.controller.settle_evicted()
            self.controller.tidy()
            self._prefetching.tidy()
        self._discard_dead()
        self.exclusive.after_step()
        self._room.after_step(num_steps)
        self._prefetching.after_step(num_waiting=len(self._arrived))

    # --- parts ---

    def _let_go(self, request: Request) -> None:
        """A turn is held back: what only its session has goes before all that others will use."""
        session = self.controller.sessions.get(SessionKey("", request.run.name))
        if session is not None:
            blocks = [block for _, block in self.controller.sessions.private_blocks(session)]
            self._machine.pool.give_up(blocks)
            self._machine.dram.mark_worthless(blocks)

    def _admission(self, config: AgentKVConfig, clock: Clock) -> ProgramAdmission:
        machine = self._machine
        sessions = self.controller.sessions
        return ProgramAdmission(
            config.admission,
            clock,
            self.recorder,
            capacity_tokens=(machine.pool.num_blocks + machine.dram.num_blocks)
            * machine.block_tokens,
            recompute_s=costs_of(machine.profile).recompute_s,
            live_tokens=lambda: len(sessions.tree) * machine.block_tokens,
            is_live=lambda key: sessions.get(key) is not None,
        )

    def _deps(self, policy: PausePolicy, predictor: WaitPredictor, clock: Clock) -> Deps:
        profile = self._machine.profile
        return Deps(
            costs=costs_of(profile),
            footprint=KvFootprint((KvGroup(profile.bytes_per_token),)),
            predictor=predictor,
            policy=policy,
            ledger=SilentLedger(clock),
            recorder=self.recorder,
            clock=clock,
            locate=self._locate,
        )

    def _locate(self, refs: Sequence[BlockRef]) -> Location:
        """See `appraisal.Location`."""
        machine = self._machine
        dram, pool = machine.dram, machine.pool
        num_missing = num_unstored = 0
        slow_bytes: dict[str, float] = {}
        for _, block in refs:
            if block in dram.blocks:
                continue
            tier = dram.find_below(block) if dram.tiers else None
            if tier is not None:
                slow_bytes[tier.name] = slow_bytes.get(tier.name, 0.0) + machine.block_bytes
            elif dram.num_blocks and pool.holds(block):
                num_unstored += 1
            else:
                num_missing += 1
        slow_s = sum(tier.load_s(slow_bytes.get(tier.name, 0.0)) for tier in dram.tiers)
        return Location(num_missing, num_unstored, slow_s)

    def _before_dram_evicts(self, num_blocks: int, besides: Collection[bytes]) -> None:
        self._arrived.protect_in_dram()
        self.exclusive.make_room(num_blocks, besides)

    def _after_dram_evicted(self, lost: Sequence[bytes]) -> None:
        """What the pool has is not lost yet."""
        holds = self._machine.pool.holds
        self.controller.note_evicted(block for block in lost if not holds(block))

    def _discard_dead(self) -> None:
        sessions = self.controller.sessions
        died = sessions.take_dead() + sessions.take_lapsed()
        if not died:
            return
        refs = [*self._dead_in_use, *died]
        dead = [ref for ref in refs if ref[1] not in sessions.tree]
        blocks = [block for _, block in dead]
        self._machine.dram.mark_worthless(blocks)
        in_use = set(self._machine.pool.discard(blocks))
        self._dead_in_use = [ref for ref in dead if ref[1] in in_use]
        self._machine.pool.paused.difference_update(blocks)
        self._arrived.rescue(blocks)
        self._room.note_change()
