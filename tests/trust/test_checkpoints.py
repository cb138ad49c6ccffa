"""A signed head of a log, and a proof of one entry, are verified without the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.checkpoints import (
    EMPTY_ROOT,
    Checkpoint,
    MerkleTree,
    is_included,
    leaf_hash,
    node_hash,
    proof_text,
    signed_note,
    verified_checkpoint,
    verified_note,
)
from keyturn.gateway.trust.key_folder import SigningKey
from tests.trust.proofs import proven, root_of

ORIGIN = "keyturn/audit/default"
KEY = SigningKey.from_seed(ORIGIN, bytes(range(32)))
NEXT = SigningKey.from_seed(ORIGIN, bytes(range(1, 33)))
ENTRIES = [b"one", b"two", b"three"]
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def log() -> MerkleTree:
    tree = MerkleTree(has_proofs=True)
    for entry in ENTRIES:
        tree.append(leaf_hash(entry))
    return tree


def note(*keys: SigningKey) -> str:
    return Checkpoint(ORIGIN, 3, root_of(LEAVES)).signed(*(keys or (KEY,)))


def proof(index: int = 1) -> str:
    return proof_text(index, log().inclusion_proof(index), note())


def test_one_of_two_keys_is_enough_while_one_follows_the_other() -> None:
    both = note(KEY, NEXT)

    for key in (KEY, NEXT):
        assert verified_checkpoint(both, origin=ORIGIN, keys=[key.public]).size == 3


def test_a_wrong_signature_of_a_known_key_refuses_the_note() -> None:
    *_, line = note(NEXT).splitlines(keepends=True)
    other = Checkpoint(ORIGIN, 2, root_of(LEAVES[:2])).signed(KEY)

    with pytest.raises(NotVerified, match="signature_wrong"):
        verified_note(other + line, [KEY.public, NEXT.public])
    assert verified_note(other + line, [KEY.public])


def test_an_entry_is_proven_without_the_log() -> None:
    for index, entry in enumerate(ENTRIES):
        found, checkpoint = proven(
            proof(index), entry, origin=ORIGIN, keys=[KEY.public]
        )
        assert (found, checkpoint.size) == (index, 3)


def test_a_checkpoint_of_another_log_is_refused() -> None:
    with pytest.raises(NotVerified, match="origin_wrong"):
        verified_checkpoint(note(), origin="keyturn/audit/acme", keys=[KEY.public])


@pytest.mark.parametrize("text", ["no newline", "a\ttab\n", "", "\x00\n"])
def test_only_plain_text_becomes_a_note(text: str) -> None:
    with pytest.raises(ValueError, match="newline"):
        signed_note(text, KEY)


def test_more_lines_than_three_are_no_checkpoint() -> None:
    longer = signed_note(f"{Checkpoint(ORIGIN, 3, root_of(LEAVES)).text}more\n", KEY)

    with pytest.raises(NotVerified, match="malformed"):
        verified_checkpoint(longer, origin=ORIGIN, keys=[KEY.public])


# A log's tree proves its entries.


def tree_of(count: int) -> MerkleTree:
    tree = MerkleTree(has_proofs=True)
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

    assert [root_of(leaves[:size]) for size in range(131)] == [
        plain_root(leaves[:size]) for size in range(131)
    ]


@given(st.integers(1, 300), st.data())
def test_each_leaf_is_proven_in_its_place(size: int, data: st.DataObject) -> None:
    tree = tree_of(size)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size))
    leaf = leaf_hash(str(index).encode())
    proof = tree.inclusion_proof(index)
    root = root_of([leaf_hash(str(number).encode()) for number in range(size)])

    assert is_included(leaf, index, size, proof, root)
    assert other == index or not is_included(leaf, other, size, proof, root)


@pytest.mark.parametrize("index", [-1, 3, 10])
def test_what_the_tree_does_not_have_is_not_proven(index: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        tree_of(3).inclusion_proof(index)
