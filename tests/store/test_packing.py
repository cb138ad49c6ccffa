"""Packed JSON: round trips and refusals."""

from __future__ import annotations

import json
import random
import string
import zlib

import pytest

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.store.sealing import encryption
from keyturn.gateway.store.sealing.encryption import packed, unpacked
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.stored_records import document

RECORD = json.dumps({"thread": "t", "items": [{"tool": "refund", "args": {}}] * 20})
ONE_CALL = '{"tenant":"default","agent":"support","items":[{"tier":"approve"}]}'


@pytest.mark.parametrize("size", [0, 5000, 6516, 6517, 6518, 9000, 100_000])
def test_a_text_of_any_size_comes_back_and_finds_what_is_far_behind(size: int) -> None:
    numbers = random.Random(size)  # noqa: S311 - the same text in every run
    between = "".join(numbers.choices(string.ascii_letters, k=size))
    text = json.dumps({"first": RECORD, "between": between})

    assert unpacked(packed(text)).decode() == text
    assert len(packed(text)) < len(text)


def test_the_shared_text_never_changes_because_older_records_need_it() -> None:
    stored = "78c39b968b4b0b0af28b4a94f0c432d00800"

    assert packed(ONE_CALL).hex() == stored
    assert unpacked(bytes.fromhex(stored)).decode() == ONE_CALL


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
    "junk", [b"junk", b"\x78", b"\x78\x9cjunk", packed(RECORD) + b"x"]
)
def test_junk_is_damaged(junk: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpacked(junk)


def test_a_text_that_unpacks_hugely_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "MOST_BYTES", 1000)

    with pytest.raises(ValueError, match="damaged"):
        unpacked(zlib.compress(b"[" * 100_000))


# A stored record is read back unchanged.


async def test_a_record_is_read_as_it_was_written(store: Store) -> None:
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    edit = Edit(args={"amount": 4}, reason="less")
    await harness.reviews.decide(click, edit, ANA)
    mine = await store.approvals.load(click.approval)
    other = Store(store.conn.url, secrets=SECRETS)

    theirs = await other.approvals.load(click.approval)

    await other.close()
    assert mine is not None
    assert theirs is not None
    assert theirs.approval == mine.approval
    found = await document(store.conn, store.keys_of_tenant("default"), click.approval)
    # What its key, its action and the fields of the head have is not repeated.
    assert not found.keys() & {"id", "rev", "expires_at_ms"}
    assert not found["items"][0].keys() & {"id", "ctx", "tool", "state"}
