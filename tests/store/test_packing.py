"""Packed JSON: what comes back, and what is refused."""

from __future__ import annotations

import json
import random
import string
import zlib

import pytest

from twokey.gateway.errors import NewerRecord
from twokey.gateway.store import packing
from twokey.gateway.store.packing import packed, unpacked

RECORD = json.dumps({"tenant": "default", "thread": "t", "items": [{"tool": "refund"}]})


def test_a_text_comes_back_and_takes_less_room() -> None:
    assert unpacked(packed(RECORD)).decode() == RECORD
    assert len(packed(RECORD)) < len(RECORD)


@pytest.mark.parametrize("size", [0, 5000, 6516, 6517, 6518, 9000, 100_000])
def test_a_text_of_any_size_comes_back_and_finds_what_is_far_behind(size: int) -> None:
    numbers = random.Random(size)  # noqa: S311 - the same text in every run
    between = "".join(numbers.choices(string.ascii_letters, k=size))
    text = json.dumps({"first": RECORD, "between": between})

    assert unpacked(packed(text)).decode() == text
    assert len(packed(text)) < len(text)


def test_what_does_not_become_shorter_stays_as_it_is() -> None:
    assert packed("{}") == b"{}" == unpacked(b"{}")


def test_every_damaged_byte_is_noticed_or_changes_the_text() -> None:
    whole = packed(RECORD)
    for at in range(1, len(whole)):
        for cut in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            try:
                found = unpacked(cut)
            except ValueError:
                continue
            assert found.decode("utf-8", "replace") != RECORD


@pytest.mark.parametrize(
    "junk", [b"junk", b"\x02", b"\x02junk", b"\x03junk", packed(RECORD) + b"x"]
)
def test_junk_is_damaged(junk: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|neither"):
        unpacked(junk)


def test_another_dictionary_is_of_a_newer_version() -> None:
    with pytest.raises(NewerRecord):
        unpacked(b"\x04" + packed(RECORD)[1:])


def test_a_text_that_would_fill_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    deflate = zlib.compressobj(wbits=-15)
    bomb = b"\x02" + deflate.compress(b"[" * 100_000) + deflate.flush()

    with pytest.raises(ValueError, match="damaged"):
        unpacked(bomb)


HASHES = json.dumps(
    {
        "action": "sha256:" + "0a" * 32,
        "salt": "f" * 32,
        "longer": "ab" * 33,
        "upper": "AB" * 16,
        "marks": "\x01\x02",
        "again": ["0a" * 32, "1" * 32],
    }
)


def test_hashes_come_back_and_take_no_more_than_their_bytes() -> None:
    assert unpacked(packed(HASHES)).decode() == HASHES

    without = HASHES.replace("0a" * 32, "").replace("f" * 32, "").replace("1" * 32, "")
    assert len(packed(HASHES)) < len(packed(without)) + 2 * 32 + 2 * 16 + 10


def test_what_the_version_before_packed_is_read() -> None:
    """It had another dictionary, and no hashes behind the text."""
    dictionary = packing.DICTIONARIES[2]
    deflate = zlib.compressobj(wbits=-15, zdict=dictionary)
    before = b"\x02" + deflate.compress(HASHES.encode()) + deflate.flush()

    assert unpacked(before).decode() == HASHES
    with pytest.raises(ValueError, match="damaged"):
        unpacked(before + b"\x00" * 32)
