"""A seal is of one content in one place, by a key that is known."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.encryption import (
    EncryptionKeys,
    decrypt,
    encrypt,
    encryption_keys,
)
from keyturn.gateway.trust.seals import (
    SEAL_BYTES,
    Purpose,
    SealKeys,
    derived_key,
    key_id_of,
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


# An encrypted text is read only where it belongs, and only while its key exists.

HERE = ("default", "apr_1", "arguments", "3")
OLDER, NEWER = {"0a0b0c0d": b"o" * 32}, {"01020304": b"n" * 32}
TEXTS = st.binary(max_size=200)


@given(TEXTS, st.binary(min_size=32, max_size=32))
def test_a_text_is_read_with_its_key_at_its_place(text: bytes, key: bytes) -> None:
    encrypted = encrypt(key, text, HERE)

    assert decrypt(key, encrypted, HERE) == text
    assert len(encrypted) == len(text) + 28


@pytest.mark.parametrize(
    "place",
    [
        ("acme", "apr_1", "arguments", "3"),
        ("default", "apr_2", "arguments", "3"),
        ("default", "apr_1", "reason", "3"),
        ("default", "apr_1", "arguments", "2"),
        # The same letters with their borders elsewhere.
        ("defaulta", "pr_1", "arguments", "3"),
        ("default", "apr_1a", "rguments", "3"),
    ],
)
def test_a_text_that_was_moved_is_refused(place: tuple[str, ...]) -> None:
    encrypted = encrypt(b"k" * 32, b"text", HERE)

    with pytest.raises(NotVerified, match="changed"):
        decrypt(b"k" * 32, encrypted, place)


def test_every_flipped_bit_is_refused() -> None:
    encrypted = encrypt(b"k" * 32, b"text", HERE)

    for place in range(len(encrypted)):
        for bit in range(8):
            changed = bytearray(encrypted)
            changed[place] ^= 1 << bit
            with pytest.raises(NotVerified, match="changed"):
                decrypt(b"k" * 32, bytes(changed), HERE)


def test_a_data_key_outlives_the_rotation_of_what_wraps_it() -> None:
    before = EncryptionKeys("0a0b0c0d", OLDER)
    during = EncryptionKeys("01020304", {**NEWER, **OLDER})
    after = EncryptionKeys("01020304", NEWER)
    wrapped = before.encrypt(b"data key", HERE)
    again = during.encrypt(during.decrypt(wrapped, HERE), HERE)

    assert after.decrypt(again, HERE) == b"data key"
    with pytest.raises(NotVerified, match="key_unknown"):
        after.decrypt(wrapped, HERE)


def test_keys_of_two_purposes_have_nothing_in_common() -> None:
    secret = b"s" * 32
    keys = {derived_key(secret, purpose) for purpose in Purpose}
    ids = {key_id_of(secret, purpose) for purpose in Purpose}

    assert len(keys) == len(ids) == len(Purpose)
    assert not any(bytes.fromhex(one) in key for one in ids for key in keys)


@pytest.mark.parametrize(
    "place", [("event",), ("event", "s1"), ("events", "0"), ("event", "s", "0"), ("",)]
)
def test_a_text_without_a_record_is_read_in_place(place: tuple[str, ...]) -> None:
    keys = encryption_keys((b"s" * 32,), Purpose.TEXTS)
    stored = keys.encrypt(b"text", ("event", "s0"))

    assert keys.decrypt(stored, ("event", "s0")) == b"text"
    with pytest.raises(NotVerified, match="changed"):
        keys.decrypt(stored, place)
