"""A seal is of one content in one place, by a key that is known."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.seals import (
    SEAL_BYTES,
    Purpose,
    SealKeys,
    derived_key,
    seal_keys,
)

OLD, NEW = b"o" * 32, b"n" * 32
KEYS = SealKeys([NEW], Purpose.FACTS)
PLACE = ("default", "facts")


def test_a_seal_is_the_beginning_of_an_hmac_with_the_derived_key() -> None:
    message = b"keyturn/v1/seal\x003:7:verdict7:default5:factshold"
    whole = hmac.new(derived_key(NEW, Purpose.FACTS), message, hashlib.sha256)

    assert KEYS.make("verdict", PLACE, b"hold") == whole.digest()[:SEAL_BYTES]


@pytest.mark.parametrize(
    ("label", "place", "content"),
    [
        ("verdicts", PLACE, b"hold"),
        ("verdict", ("other", "facts"), b"hold"),
        ("verdict", ("default", "facts", ""), b"hold"),
        ("verdict", ("default",), b"5:factshold"),
        ("verdict", ("defaultfacts", ""), b"hold"),
        ("verdict", PLACE, b"run"),
        ("verdict", PLACE, b""),
    ],
)
def test_of_another_kind_place_or_content_it_does_not_verify(
    label: str, place: tuple[str, ...], content: bytes
) -> None:
    seal = KEYS.make("verdict", PLACE, b"hold")

    assert KEYS.is_valid(seal, "verdict", PLACE, b"hold")
    assert not KEYS.is_valid(seal, label, place, content)


@given(st.integers(min_value=0, max_value=8 * SEAL_BYTES - 1))
def test_with_one_bit_changed_it_does_not_verify(bit: int) -> None:
    seal = bytearray(KEYS.make("verdict", PLACE, b"hold"))
    seal[bit // 8] ^= 1 << bit % 8

    assert not KEYS.is_valid(bytes(seal), "verdict", PLACE, b"hold")


def test_what_an_older_secret_sealed_verifies_until_it_is_gone() -> None:
    seal = SealKeys([OLD], Purpose.FACTS).make("verdict", PLACE, b"hold")

    seal_keys((NEW, OLD), Purpose.FACTS).check(seal, "verdict", PLACE, b"hold")
    with pytest.raises(NotVerified, match="seal_wrong"):
        KEYS.check(seal, "verdict", PLACE, b"hold")


def test_a_key_of_another_purpose_does_not_verify_it() -> None:
    seal = KEYS.make("verdict", PLACE, b"hold")

    others = [one for one in Purpose if one is not Purpose.FACTS]
    assert not any(
        SealKeys([NEW], one).is_valid(seal, "verdict", PLACE, b"hold") for one in others
    )
