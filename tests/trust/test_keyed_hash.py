"""A prepared key gives the HMAC that the standard library gives."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.trust.seals import KeyedHash, keyed_hash

VECTORS = (
    (
        b"\x0b" * 20,
        b"Hi There",
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
    ),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
)
"""Test cases 1, 2 and 6 of RFC 4231, section 4."""


@pytest.mark.parametrize(("key", "message", "wanted"), VECTORS)
def test_it_gives_what_the_standard_says(
    key: bytes, message: bytes, wanted: str
) -> None:
    assert KeyedHash(key)(message).hex() == wanted


@given(st.binary(max_size=200), st.lists(st.binary(max_size=300), max_size=4))
def test_it_gives_what_the_library_gives_however_often(
    key: bytes, messages: list[bytes]
) -> None:
    """One message leaves nothing behind for the next."""
    made = KeyedHash(key)

    found = [made(one) for one in messages]

    assert found == [hmac.digest(key, one, "sha256") for one in messages]


@pytest.mark.parametrize("length", [63, 64, 65])
def test_a_key_of_about_one_block_is_taken_as_it_is(length: int) -> None:
    key = bytes(range(length))

    assert keyed_hash(key)(b"x") == hmac.digest(key, b"x", "sha256")


def test_each_key_has_a_hash_of_its_own() -> None:
    assert keyed_hash(b"one")(b"x") != keyed_hash(b"other")(b"x")
    assert keyed_hash(b"one") is keyed_hash(b"one")
