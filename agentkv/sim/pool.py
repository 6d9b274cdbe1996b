"""The GPU pool: blocks, who uses them, and the order in which free ones are reused.

What: vLLM's block pool at block level. A block that no turn uses stays findable under its hash
until it is reused; reuse takes empty blocks, then the front (dead blocks, then given-up ones), then
free ones by how long ago they were freed, each chain's tail before its head.
Why block by block and not by session: prefixes are shared and sessions lose their tails only.
Where: `engine` allocates and frees; `managed` reorders it as `connectors.pool_order` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Pool:
    """Invariant: empty + free + front + distinct used + nameless blocks = `num_blocks`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_empty = num_blocks
        self.num_nameless = 0  # in use without a hash: partly filled, or being loaded
        self.num_dead = 0
        self.free: OrderedDict[bytes, None] = OrderedDict()
        self.front: OrderedDict[bytes, bool] = OrderedDict()  # value: is dead
        self.used: dict[bytes, int] = {}
        # Resident blocks of sessions that pause: what pauses cost.
        self.paused: set[bytes] = set()

    @property
    def num_free(self) -> int:
        """Blocks that the next allocation may take."""
        return self.num_empty + len(self.free) + len(self.front)

    def holds(self, block: bytes) -> bool:
        return block in self.used or block in self.free or block in self.front

    def num_users(self, block: bytes) -> int | None:
        """How many turns use it; None if it is not here, or was given up."""
        return self.used.get(block, 0 if block in self.free else None)

    def cached_depth(self, chain: Sequence[bytes], most: int) -> int:
        """Blocks of the chain's longest prefix that is here, at most `most`."""
        used, free, front = self.used, self.free, self.front
        depth = 0
        for block in chain[:most]:
            if block not in used and block not in free and block not in front:
                break
            depth += 1
        return depth

    def can_take(self, hit: Sequence[bytes], num_new: int) -> bool:
        """Whether `num_new` blocks are free beside those of the hit."""
        num_hit_free = sum(block not in self.used for block in hit)
        return num_new <= self.num_free - num_hit_free

    def take(self, hit: Sequence[bytes], new: Sequence[bytes], num_nameless: int) -> None:
        """A turn uses the blocks of its hit, and new ones for `new` and `num_nameless` more.

        Ask `can_take` first.
        """
        used, free, front = self.used, self.free, self.front
        for block in hit:
            if block in used:
                used[block] += 1
            else:
                self._lift(block)
                used[block] = 1
        self._allocate(len(new) + num_nameless)
        self.num_nameless += num_nameless
        for block in new:
            if block in used or block in free or block in front:
                self._name_again(block)
            else:
                used[block] = 1

    def release(self, chain: Sequence[bytes], num_nameless: int) -> None:
        """The turn ended: its blocks are free, the tail first to be reused."""
        used, free = self.used, self.free
        for block in reversed(chain):
            count = used[block] - 1
            if count:
                used[block] = count
            else:
                del used[block]
                free[block] = None
        self.num_nameless -= num_nameless
        self.num_empty += num_nameless

    # --- what agentkv does with the order ---

    def discard(self, blocks: Iterable[bytes]) -> list[bytes]:
        """Blocks that no session needs go to the very front; returns those in use."""
        in_use = []
        moved = []
        for block in blocks:
            if block in self.used:
                in_use.append(block)
            elif self._lift(block):
                moved.append(block)
        for block in reversed(moved):
            self.front[block] = True
            self.front.move_to_end(block, last=False)
        self.num_dead += len(moved)
        return in_use

    def give_up(self, blocks: Iterable[bytes]) -> int:
        """Free blocks go behind those given up before, ahead of all others; returns how many."""
        num_moved = 0
        for block in blocks:
            if block in self.free:
                del self.free[block]
                self.front[block] = False
                num_moved += 1
        return num_moved

    def protect(self, chain: Iterable[bytes]) -> int:
        """Free blocks of a chain, given deepest first, go to the very back; returns how many."""
        num_moved = 0
        for block in chain:
            if block in self.free:
                self.free.move_to_end(block)
                num_moved += 1
            elif block in self.front:
                self._lift(block)
                self.free[block] = None
                num_moved += 1
        return num_moved

    def count_front(self, limit: int) -> tuple[int, int]:
        """Blocks at the front of the queue, up to `limit`: (worthless, ready)."""
        num_ready = min(limit, self.num_empty + len(self.front))
        return min(limit, self.num_empty + self.num_dead), num_ready

    # --- loads without a turn ---

    def reserve(self, num_blocks: int) -> None:
        """Takes blocks for a load that is under way."""
        self._allocate(num_blocks)
        self.num_nameless += num_blocks

    def fill_reserved(self, blocks: Sequence[bytes], *, is_paused: bool) -> None:
        """The load is done: its blocks are free, cached, and the last to be reused."""
        self.num_nameless -= len(blocks)
        for block in reversed(blocks):
            if self.holds(block):
                self.num_empty += 1
            else:
                self.free[block] = None
                if is_paused:
                    self.paused.add(block)

    def check(self) -> None:
        """Raises AssertionError where blocks were lost or made."""
        total = self.num_empty + self.num_nameless + len(self.used) + len(self.free)
        total += len(self.front)
        assert total == self.num_blocks, f"{total} blocks of {self.num_blocks}"
        assert self.num_empty >= 0 and self.num_nameless >= 0
        assert self.num_dead == sum(self.front.values())

    # --- parts ---

    def _name_again(self, block: bytes) -> None:
        """A new block gets the hash of one that is here already: the two are one."""
        self.num_empty += 1
        if block in self.used:
            self.used[block] += 1
        else:
            self._lift(block)
            self.used[block] = 1

    def _lift(self, block: bytes) -> bool:
        """Takes a free block out of the queue; False if it is not there."""
        if block in self.free:
            del self.free[block]
            return True
        is_dead = self.front.pop(block, None)
        self.num_dead -= bool(is_dead)
        return is_dead is not None

    def _allocate(self, num_blocks: int) -> None:
        num_left = num_blocks - min(num_blocks, self.num_empty)
        self.num_empty -= num_blocks - num_left
        while num_left and self.front:
            block, is_dead = self.front.popitem(last=False)
            self.num_dead -= is_dead
            self.paused.discard(block)
            num_left -= 1
        for _ in range(num_left):
            block, _ = self.free.popitem(last=False)
            self.paused.discard(block)
