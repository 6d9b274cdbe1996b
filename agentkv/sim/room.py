"""Room for what requests want: worthless blocks first, then what pauses can give.

As `connectors.room`, for an engine that reserves prompt and answer at admission: so running turns
want no more than the block each is about to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentkv.controller import Controller
from agentkv.policy import Action
from agentkv.portfolio import Victim
from agentkv.sessions import Session
from agentkv.sim.arrived import ArrivedTurns
from agentkv.sim.exclusive import Exclusive
from agentkv.sim.machine import Machine

_EVERY_STEPS = 8
_STEPS_AHEAD = 2
_BLOCK_TOKENS = 16  # of vLLM: what a decoding turn takes next


class Room:
    """`on_given_up` hears of each session whose blocks went to the front."""

    def __init__(
        self,
        machine: Machine,
        controller: Controller,
        arrived: ArrivedTurns,
        exclusive: Exclusive,
        on_given_up: Callable[[Session], None],
    ) -> None:
        self.num_running = 0
        self._machine = machine
        self._pool = machine.pool
        self._controller = controller
        self._arrived = arrived
        self._exclusive = exclusive
        self._on_given_up = on_given_up
        self._step_blocks = -(-machine.profile.max_step_tokens // machine.block_tokens)
        self._num_wanted = 0
        self._is_short = False
        self._steps_left = 0

    def note_change(self) -> None:
        self._steps_left = 0

    def after_step(self, num_steps: int) -> None:
        """Makes room again if it may have become too little since the last time."""
        self._steps_left -= num_steps
        if self._steps_left < 0 or self._is_short:
            self.make()

    def make(self) -> None:
        """Readies as many blocks as requests want now, as far as pauses can give them."""
        self._steps_left = _EVERY_STEPS
        wanted = min(self._wanted_blocks(), self._pool.num_free)
        num_worthless, num_ready = self._pool.count_front(wanted)
        self._controller.appraiser.observe_demand(
            wanted_blocks=wanted, worthless_blocks=num_worthless
        )
        self._num_wanted, self._is_short = wanted, num_ready < wanted
        if self._is_short:
            num_lacking = wanted - num_ready
            if self._take(self._controller.victims(), num_lacking) >= num_lacking:
                self._is_short = False
        self.protect()

    def protect(self) -> None:
        self._arrived.renew(near_blocks=self._num_wanted, is_short=self._is_short)

    def worthless_beyond(self, num_reserved: int, most: int) -> int:
        """Up to `most` blocks that nobody needs, beyond a reserve and what requests want."""
        num_kept_back = num_reserved + self._all_wanted()[0]
        num_worthless, _ = self._pool.count_front(most + num_kept_back)
        return min(most, max(0, num_worthless - num_kept_back))

    def for_return(self, session: Session, *, num_blocks: int, after_s: float) -> int:
        """Readies blocks for the KV of a session that will be back; how many may be taken."""
        wanted = self._all_wanted()[0]
        num_blocks = min(num_blocks, self._pool.num_free - wanted)
        if num_blocks <= 0:
            return 0
        num_lacking = num_blocks + wanted - self._pool.count_front(num_blocks + wanted)[1]
        if num_lacking > 0:
            victims = self._controller.portfolio.later_returns(after_s, besides=session)
            num_lacking -= self._take(victims, num_lacking)
        return max(0, num_blocks - max(0, num_lacking))

    def _take(self, victims: Iterable[Victim], num_lacking: int) -> int:
        num_taken = 0
        for victim in victims:
            blocks = [block for _, block in victim.refs]
            is_dropped = victim.action is Action.RECOMPUTE
            if not is_dropped:
                self._exclusive.before_give_up(victim.session, victim.refs)
            num_taken += self._pool.give_up(blocks)
            if is_dropped:
                self._machine.dram.mark_worthless(blocks)
            self._on_given_up(victim.session)
            if num_taken >= num_lacking:
                break
        return num_taken

    def _wanted_blocks(self) -> int:
        """What requests want, as far as soon matters."""
        wanted, largest = self._all_wanted()
        return min(wanted, _STEPS_AHEAD * self._step_blocks + largest + self.num_running)

    def _all_wanted(self) -> tuple[int, int]:
        wanted, largest = self._arrived.wanted_blocks()
        running = -(-self.num_running * _BLOCK_TOKENS // self._machine.block_tokens)
        return wanted + running, largest
