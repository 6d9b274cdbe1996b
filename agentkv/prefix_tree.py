"""Which sessions share which KV blocks: a tree of block hashes.

A block hash chains over its whole prefix, so a hash names one path from the root. Each session
keeps a leaf per live branch; `live` counts the leaves at or below a node. The private part of a
branch is its run of nodes with `live == 1`, counted from the leaf upwards: what may be given up
without hurting another session. Nodes that lose their last leaf are returned as dead and forgotten.

Read by `sessions`; knows nothing of where a block's bytes lie.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple


class _Node:
    __slots__ = ("depth", "hash", "live", "owner", "parent")

    def __init__(self, parent: _Node | None, block_hash: bytes, owner: Hashable) -> None:
        self.parent = parent
        self.hash = block_hash
        self.depth: int = parent.depth + 1 if parent is not None else 1
        self.live = 0
        self.owner = owner


class Place(NamedTuple):
    """A block in the tree: who first wrote it, how deep it is, and how many branches use it."""

    owner: Hashable
    depth: int
    num_branches: int


class Leaf:
    """The end of one branch of a session. Made and released by `PrefixTree` only."""

    __slots__ = ("_node",)

    def __init__(self, node: _Node) -> None:
        self._node = node

    @property
    def depth(self) -> int:
        """Number of full blocks from the root to here."""
        return self._node.depth

    @property
    def block_hash(self) -> bytes:
        return self._node.hash


class PrefixTree:
    """Reference counts over block hashes. Owned by one thread; nothing here blocks or does I/O."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._nodes

    def add(self, hashes: Sequence[bytes], owner: Hashable) -> Leaf | None:
        """Adds the chain `hashes` (root first) and returns its leaf; None for an empty chain.

        New nodes belong to `owner`. Cost: one dict look-up per block from the first shared block to
        the leaf, plus a walk to the root for the counts.
        """
        if not hashes:
            return None
        start = self.match_depth(hashes)
        node = self._nodes[hashes[start - 1]] if start else None
        for block_hash in hashes[start:]:
            node = _Node(node, block_hash, owner)
            self._nodes[block_hash] = node
        assert node is not None
        for ancestor in _to_root(node):
            ancestor.live += 1
        return Leaf(node)

    def extend(self, leaf: Leaf, hashes: Sequence[bytes], owner: Hashable) -> Leaf:
        """Moves `leaf` down to the end of `hashes`, which must pass through it.

        The same as adding the new chain and releasing the old one, without the two walks to the
        root. `leaf` must not be used afterwards.
        """
        node = leaf._node
        assert len(hashes) >= node.depth and hashes[node.depth - 1] == node.hash
        for block_hash in hashes[node.depth :]:
            child = self._nodes.get(block_hash)
            if child is None:
                child = _Node(node, block_hash, owner)
                self._nodes[block_hash] = child
            child.live += 1
            node = child
        return Leaf(node)

    def release(self, leaf: Leaf) -> list[tuple[int, bytes]]:
        """Drops a leaf; returns the (depth, hash) pairs that died with it, deepest first."""
        dead: list[tuple[int, bytes]] = []
        for node in _to_root(leaf._node):
            node.live -= 1
            assert node.live >= 0, f"leaf released twice at depth {node.depth}"
            if node.live == 0:
                del self._nodes[node.hash]
                dead.append((node.depth, node.hash))
        return dead

    def private(self, leaf: Leaf) -> list[tuple[int, bytes]]:
        """(depth, hash) of the blocks no other leaf uses, deepest first."""
        nodes: list[tuple[int, bytes]] = []
        for node in _to_root(leaf._node):
            if node.live > 1:
                break
            nodes.append((node.depth, node.hash))
        return nodes

    def chain(self, leaf: Leaf) -> list[tuple[int, bytes]]:
        """(depth, hash) of every block from the leaf to the root, deepest first."""
        return [(node.depth, node.hash) for node in _to_root(leaf._node)]

    def match_depth(self, hashes: Sequence[bytes]) -> int:
        """Length of the longest known prefix of `hashes`, in blocks.

        A node's ancestors are always known, so this is a binary search: O(log n) look-ups.
        """
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._nodes:
                low = middle
            else:
                high = middle - 1
        return low

    def owner_at(self, block_hash: bytes) -> Hashable | None:
        """Who first wrote this block, or None if it is unknown."""
        node = self._nodes.get(block_hash)
        return node.owner if node is not None else None

    def place(self, block_hash: bytes) -> Place | None:
        """Where this block is; None if it is unknown."""
        node = self._nodes.get(block_hash)
        return None if node is None else Place(node.owner, node.depth, node.live)

    def common_depth(self, leaf: Leaf, hashes: Sequence[bytes]) -> int:
        """Blocks that the branch of `leaf` and the chain `hashes` have in common."""
        node: _Node | None = leaf._node
        while node is not None and (
            node.depth > len(hashes) or hashes[node.depth - 1] != node.hash
        ):
            node = node.parent
        return node.depth if node is not None else 0


def _to_root(node: _Node) -> Iterator[_Node]:
    current: _Node | None = node
    while current is not None:
        yield current
        current = current.parent
