"""A signed head of a log, and a proof of one entry, are verified without the log."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey, parse_public_key
from keyturn.gateway.protocol.receipts import pae
from keyturn.gateway.trust.audit_proofs import (
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
from tests.trust.published import published

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


def test_a_key_signs_as_rfc_8032_does() -> None:
    """See its section 7.1, test 3."""
    key = SigningKey.from_seed(
        "rfc8032",
        bytes.fromhex(
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"
        ),
    )
    assert key.public.raw.hex() == (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    )
    assert key.sign(b"\xaf\x82").hex() == (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )


def test_every_published_signature_gets_its_verdict() -> None:
    wrong: list[int] = []
    count = 0
    for group in published("ed25519"):
        key = PublicKey("wycheproof", bytes.fromhex(group["key"]))
        for test in group["tests"]:
            count += 1
            message, signature = (bytes.fromhex(test[one]) for one in ("msg", "sig"))
            if key.has_signed(message, signature) is not (test["result"] == "valid"):
                wrong.append(test["tcId"])

    assert (count, wrong) == (151, [])


def test_every_published_proof_gets_its_verdict() -> None:
    wrong: list[str] = []
    found = published("merkle")["inclusion"]
    for name, test in found.items():
        is_proven = is_included(
            _raw(test["leafHash"]),
            test["leafIdx"],
            test["treeSize"],
            [base64.b64decode(one) for one in test.get("proof") or ()],
            _raw(test["root"]),
        )
        if is_proven is test["wantErr"]:
            wrong.append(name)

    assert (len(found), wrong) == (98, [])


def _raw(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def test_roots_are_those_of_certificate_transparency() -> None:
    leaves = [
        bytes.fromhex(one)
        for one in (
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        )
    ]
    hashes = [leaf_hash(one) for one in leaves]
    assert root_of([]) == EMPTY_ROOT
    assert root_of(hashes[:3]).hex() == (
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"
    )
    assert root_of(hashes).hex() == (
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    )


def test_what_dsse_signs_is_its_published_text() -> None:
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


def test_the_published_note_is_verified() -> None:
    key = parse_public_key(
        "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
    )
    note = (
        "This is an example message.\n\n\u2014 example.com/foo Uw2QOkn8srV1yJGh2VYRlL1T"
        "nagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
    )

    assert verified_note(note, [key]) == "This is an example message.\n"
    with pytest.raises(NotVerified, match="signature_wrong"):
        verified_note(note.replace("an example", "no example"), [key])
