"""A signed head of a log, and a proof of one entry, are verified without the log."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.checkpoints import (
    Checkpoint,
    MerkleTree,
    leaf_hash,
    proof_text,
    signed_note,
    verified_checkpoint,
    verified_note,
)
from keyturn.gateway.trust.key_folder import SigningKey
from tests.trust.proofs import proven

ORIGIN = "keyturn/audit/default"
KEY = SigningKey.from_seed(ORIGIN, bytes(range(32)))
NEXT = SigningKey.from_seed(ORIGIN, bytes(range(1, 33)))
ENTRIES = [b"one", b"two", b"three"]


def log() -> MerkleTree:
    tree = MerkleTree()
    for entry in ENTRIES:
        tree.append(leaf_hash(entry))
    return tree


def note(*keys: SigningKey) -> str:
    return Checkpoint(ORIGIN, 3, log().root()).signed(*(keys or (KEY,)))


def proof(index: int = 1) -> str:
    return proof_text(index, log().inclusion_proof(index), note())


def test_one_of_two_keys_is_enough_while_one_follows_the_other() -> None:
    both = note(KEY, NEXT)

    for key in (KEY, NEXT):
        assert verified_checkpoint(both, origin=ORIGIN, keys=[key.public]).size == 3


def test_a_wrong_signature_of_a_known_key_refuses_the_note() -> None:
    *_, line = note(NEXT).splitlines(keepends=True)
    other = Checkpoint(ORIGIN, 2, log().root(2)).signed(KEY)

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
    longer = signed_note(f"{Checkpoint(ORIGIN, 3, log().root()).text}more\n", KEY)

    with pytest.raises(NotVerified, match="malformed"):
        verified_checkpoint(longer, origin=ORIGIN, keys=[KEY.public])
