"""Our signatures, proofs and notes agree with what others have published."""

from __future__ import annotations

import base64

import pytest

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey, parse_public_key
from keyturn.gateway.protocol.receipts import pae
from keyturn.gateway.trust.checkpoints import (
    EMPTY_ROOT,
    is_included,
    leaf_hash,
    verified_note,
)
from keyturn.gateway.trust.key_folder import SigningKey
from tests.trust.proofs import root_of
from tests.trust.published import published


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
