"""A signed head of a log, and a proof of one entry, are verified without the log."""

from __future__ import annotations

import pytest

from twokey.gateway.errors import NotVerified
from twokey.gateway.trust.checkpoints import (
    Checkpoint,
    proof_text,
    verified_checkpoint,
    verify_proof,
)
from twokey.gateway.trust.merkle_tree import MerkleTree, leaf_hash
from twokey.gateway.trust.signed_note import signed_note, verified_note
from twokey.gateway.trust.signing_key import SigningKey

ORIGIN = "twokey/audit/default"
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


def test_a_checkpoint_says_how_long_the_log_is() -> None:
    found = verified_checkpoint(note(), origin=ORIGIN, keys=[KEY.public])

    assert (found.size, found.root) == (3, log().root())


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
        found, checkpoint = verify_proof(
            proof(index), entry, origin=ORIGIN, keys=[KEY.public]
        )
        assert (found, checkpoint.size) == (index, 3)


WRONG: list[tuple[str, str, str]] = [
    ("nothing", "", "malformed"),
    ("the head alone", note(), "malformed"),
    ("no head", proof().partition("\n\n")[0], "malformed"),
    ("another version", proof().replace("@v1", "@v2"), "malformed"),
    ("another place", proof().replace("index 1", "index 2"), "not_included"),
    ("no place", proof().replace("index 1", "index -1"), "malformed"),
    ("zeros before it", proof().replace("index 1", "index 01"), "malformed"),
    ("beyond the log", proof().replace("index 1", "index 3"), "not_included"),
    ("another size", proof().replace("\n3\n", "\n2\n"), "signature_wrong"),
    ("another log", proof().replace(ORIGIN, "twokey/other"), "signature_wrong"),
    ("an extra line", proof().replace("index", "extra\nindex"), "malformed"),
    ("a control character", proof().replace("index", "\tindex"), "malformed"),
    (
        "of another key",
        proof_text(1, log().inclusion_proof(1), note(NEXT)),
        "signature_wrong",
    ),
    ("a proof of another", proof_text(1, log().inclusion_proof(2), note()), "not_incl"),
    ("a hash too much", proof_text(1, [b"\0" * 32] * 3, note()), "not_included"),
    ("a hash too short", proof_text(1, [b"\0" * 31] * 2, note()), "malformed"),
    ("too many hashes", proof_text(1, [b"\0" * 32] * 100, note()), "malformed"),
]


@pytest.mark.parametrize(
    ("text", "why"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
def test_a_changed_proof_is_refused(text: str, why: str) -> None:
    with pytest.raises(NotVerified, match=why):
        verify_proof(text, ENTRIES[1], origin=ORIGIN, keys=[KEY.public])


def test_another_entry_is_not_proven() -> None:
    with pytest.raises(NotVerified, match="not_included"):
        verify_proof(proof(), b"too", origin=ORIGIN, keys=[KEY.public])


def test_a_checkpoint_of_another_log_is_refused() -> None:
    with pytest.raises(NotVerified, match="origin_wrong"):
        verified_checkpoint(note(), origin="twokey/audit/acme", keys=[KEY.public])


@pytest.mark.parametrize("text", ["no newline", "a\ttab\n", "", "\x00\n"])
def test_only_plain_text_becomes_a_note(text: str) -> None:
    with pytest.raises(ValueError, match="newline"):
        signed_note(text, KEY)


def test_more_lines_than_three_are_no_checkpoint() -> None:
    longer = signed_note(f"{Checkpoint(ORIGIN, 3, log().root()).text}more\n", KEY)

    with pytest.raises(NotVerified, match="malformed"):
        verified_checkpoint(longer, origin=ORIGIN, keys=[KEY.public])
