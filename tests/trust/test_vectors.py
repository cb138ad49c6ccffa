"""Our use of cryptography agrees with what others have published."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

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

SIZES_OF_NONCES = 27
"""Vectors of AES-GCM whose nonce has a length that the library refuses; ours has 12."""


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [  # RFC 8032 section 7.1, tests 1 to 3
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
                "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            (
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            ),
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            (
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
                "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
            ),
        ),
    ],
)
def test_a_key_signs_as_rfc_8032_does(
    seed: str, public: str, message: str, signature: str
) -> None:
    key = SigningKey.from_seed("rfc8032", bytes.fromhex(seed))

    assert key.public.raw.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature


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


def test_every_published_ciphertext_gets_its_verdict() -> None:
    wrong: list[int] = []
    refused: list[int] = []
    for test in published("aes_gcm"):
        got = _gcm(test)
        if isinstance(got, ValueError) and test["result"] == "valid":
            refused.append(test["tcId"])
        elif (got is True) is not (test["result"] == "valid"):
            wrong.append(test["tcId"])

    assert wrong == []
    assert len(refused) == SIZES_OF_NONCES


def _gcm(test: dict[str, Any]) -> bool | ValueError:
    key, nonce, aad, text, sealed, tag = (
        bytes.fromhex(test[one]) for one in ("key", "iv", "aad", "msg", "ct", "tag")
    )
    try:
        return AESGCM(key).decrypt(nonce, sealed + tag, aad) == text
    except ValueError as error:
        return error
    except Exception:  # noqa: BLE001 - InvalidTag, whose class differs by version
        return False


def test_every_published_derivation_is_ours() -> None:
    wrong: list[int] = []
    for test in published("hkdf_sha256"):
        ikm, salt, info, okm = (
            bytes.fromhex(test[one]) for one in ("ikm", "salt", "info", "okm")
        )
        try:
            hkdf = HKDF(SHA256(), length=test["size"], salt=salt, info=info)
            is_same = hkdf.derive(ikm) == okm
        except ValueError:
            is_same = False
        if is_same is not (test["result"] == "valid"):
            wrong.append(test["tcId"])

    assert wrong == []


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
    roots = [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ]
    hashes = [leaf_hash(one) for one in leaves]

    assert root_of([]) == EMPTY_ROOT
    assert [root_of(hashes[: n + 1]).hex() for n in range(len(leaves))] == roots


def test_what_dsse_signs_is_its_published_text() -> None:
    kind, body = "http://example.com/HelloWorld", b"hello world"
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    signature = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeC"
        "UjW2JIZA=="
    )
    numbers = ec.EllipticCurvePublicNumbers(
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
        ec.SECP256R1(),
    )
    r, s = (int.from_bytes(part) for part in (signature[:32], signature[32:]))

    assert pae(kind, body) == expected
    # Of another kind of key than ours, so it is verified here.
    numbers.public_key().verify(
        encode_dss_signature(r, s), pae(kind, body), ec.ECDSA(SHA256())
    )
    with pytest.raises(InvalidSignature):
        numbers.public_key().verify(
            encode_dss_signature(r, s), pae(kind, b"hello"), ec.ECDSA(SHA256())
        )


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
