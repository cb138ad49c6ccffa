"""A log's tree proves its entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.trust.checkpoints import (
    EMPTY_ROOT,
    MerkleTree,
    is_included,
    leaf_hash,
    node_hash,
)


def tree_of(count: int) -> MerkleTree:
    tree = MerkleTree()
    for number in range(count):
        tree.append(leaf_hash(str(number).encode()))
    return tree


def plain_root(leaves: list[bytes]) -> bytes:
    """Compute a root as the RFC defines it, from its beginning each time."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else EMPTY_ROOT
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return node_hash(plain_root(leaves[:half]), plain_root(leaves[half:]))


def test_each_root_is_that_of_the_definition() -> None:
    leaves = [leaf_hash(str(number).encode()) for number in range(130)]
    tree = tree_of(130)

    assert [tree.root(size) for size in range(131)] == [
        plain_root(leaves[:size]) for size in range(131)
    ]


@given(st.integers(1, 300), st.data())
def test_each_leaf_is_proven_and_at_no_other_place(
    size: int, data: st.DataObject
) -> None:
    tree = tree_of(size)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size))
    leaf = leaf_hash(str(index).encode())
    proof = tree.inclusion_proof(index)

    assert is_included(leaf, index, size, proof, tree.root())
    assert other == index or not is_included(leaf, other, size, proof, tree.root())


@pytest.mark.parametrize("index", [-1, 3, 10])
def test_what_the_tree_does_not_have_is_not_proven(index: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        tree_of(3).inclusion_proof(index)
