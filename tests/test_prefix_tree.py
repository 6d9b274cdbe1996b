"""The prefix tree against a naive model: sets of chains."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.prefix_tree import Leaf, PrefixTree


def chain(*tokens: int) -> list[bytes]:
    """Hashes that chain over their prefix, as block hashes do."""
    hashes: list[bytes] = []
    parent = b"root"
    for token in tokens:
        parent = hashlib.sha256(parent + token.to_bytes(4, "big")).digest()
        hashes.append(parent)
    return hashes


def add(tree: PrefixTree, hashes: list[bytes], owner: str = "s") -> Leaf:
    leaf = tree.add(hashes, owner)
    assert leaf is not None
    return leaf


def test_an_empty_chain_has_no_leaf() -> None:
    assert PrefixTree().add([], "s") is None


def test_private_blocks_stop_at_the_first_shared_one() -> None:
    tree = PrefixTree()
    one, two = chain(1, 2, 3, 4), chain(1, 2, 9)
    first = add(tree, one)
    add(tree, two)
    assert tree.private(first) == [(4, one[3]), (3, one[2])]


def test_releasing_one_of_two_sessions_keeps_what_they_share() -> None:
    tree = PrefixTree()
    one, two = chain(1, 2, 3, 4), chain(1, 2, 9)
    first, second = add(tree, one), add(tree, two)
    assert tree.release(first) == [(4, one[3]), (3, one[2])]
    assert tree.private(second) == [(3, two[2]), (2, two[1]), (1, two[0])]
    assert tree.release(second) == [(3, two[2]), (2, two[1]), (1, two[0])]
    assert len(tree) == 0


def test_extending_a_leaf_equals_adding_the_longer_chain() -> None:
    tree = PrefixTree()
    hashes = chain(1, 2, 3, 4, 5)
    leaf = tree.extend(add(tree, hashes[:2]), hashes, "s")
    assert leaf.depth == 5
    assert [ref[1] for ref in tree.private(leaf)] == list(reversed(hashes))


def test_extending_past_another_sessions_leaf_shares_its_blocks() -> None:
    tree = PrefixTree()
    hashes = chain(1, 2, 3, 4)
    mine = add(tree, hashes[:1])
    other = add(tree, hashes[:3])
    mine = tree.extend(mine, hashes, "s")
    assert tree.private(mine) == [(4, hashes[3])]
    assert tree.private(other) == []


def test_two_leaves_at_one_node_share_everything() -> None:
    tree = PrefixTree()
    hashes = chain(1, 2)
    first, second = add(tree, hashes), add(tree, hashes)
    assert tree.private(first) == []
    assert tree.release(second) == []
    assert len(tree.private(first)) == 2


def test_the_first_writer_owns_a_block() -> None:
    tree = PrefixTree()
    add(tree, chain(1, 2), "a")
    add(tree, chain(1, 2, 3), "b")
    assert tree.owner_at(chain(1, 2)[-1]) == "a"
    assert tree.owner_at(chain(1, 2, 3)[-1]) == "b"
    assert tree.owner_at(b"unknown") is None


def test_common_depth_finds_the_fork() -> None:
    tree = PrefixTree()
    leaf = add(tree, chain(1, 2, 3, 4))
    assert tree.common_depth(leaf, chain(1, 2, 3, 4, 5)) == 4
    assert tree.common_depth(leaf, chain(1, 2, 9, 9, 9)) == 2
    assert tree.common_depth(leaf, chain(1, 2)) == 2
    assert tree.common_depth(leaf, chain(7)) == 0
    assert tree.common_depth(leaf, []) == 0


CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=7)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CHAINS, CHAINS, st.booleans()), max_size=12))
def test_the_tree_agrees_with_a_list_of_chains(
    steps: list[tuple[list[int], list[int], bool]],
) -> None:
    tree = PrefixTree()
    model: list[tuple[Leaf, list[bytes]]] = []
    for tokens, more, is_release in steps:
        if is_release and model:
            leaf, hashes = model.pop(len(tokens) % len(model))
            dead = {ref[1] for ref in tree.release(leaf)}
            alive = {h for _, other in model for h in other}
            assert dead == set(hashes) - alive
        elif model and len(more) % 2:
            leaf, hashes = model.pop(len(more) % len(model))
            longer = longer_chain(hashes, more)
            model.append((tree.extend(leaf, longer, "s"), longer))
        else:
            hashes = chain(*tokens)
            model.append((add(tree, hashes), hashes))
        assert_agrees(tree, model)


def longer_chain(hashes: list[bytes], more: list[int]) -> list[bytes]:
    longer, parent = list(hashes), hashes[-1]
    for token in more:
        parent = hashlib.sha256(parent + token.to_bytes(4, "big")).digest()
        longer.append(parent)
    return longer


def assert_agrees(tree: PrefixTree, model: list[tuple[Leaf, list[bytes]]]) -> None:
    known = {h for _, hashes in model for h in hashes}
    assert len(tree) == len(known)
    for index, (leaf, hashes) in enumerate(model):
        others = {h for i, (_, other) in enumerate(model) if i != index for h in other}
        private = [ref[1] for ref in tree.private(leaf)]
        assert private == [h for h in reversed(hashes) if h not in others]
        for depth, each in enumerate(hashes, start=1):
            place = tree.place(each)
            assert place is not None and place.depth == depth
            assert (place.num_branches > 1) == (each in others)
        assert tree.place(b"new") is None
        assert [ref[1] for ref in tree.chain(leaf)] == list(reversed(hashes))
        assert tree.match_depth([*hashes, b"new"]) == len(hashes)
