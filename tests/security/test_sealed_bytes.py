"""No byte of a sealed record can be changed, and no field added, taken out or moved."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from keyturn.gateway.errors import ForgedRecord
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.records.codec import SEAL, RecordSeals, Stored

ID = "ap_default_" + "ab" * 16
NAMES = [
    "rev",
    "n",
    "format",
    "expires",
    "created",
    "0:s",
    "0:l",
    "1:f",
    "run",
]
FIELDS = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=40), min_size=2)


def seals_of(*secrets: bytes) -> RecordSeals:
    conn = Connection("redis://127.0.0.1:1/0")
    conn.secrets = secrets
    return RecordSeals(conn)


SEALS = seals_of(b"one secret of thirty-two bytes..")


def is_refused(stored: Stored, approval: str = ID) -> bool:
    try:
        SEALS.check(approval, stored)
    except ForgedRecord:
        return True
    return False


@given(head=FIELDS, document=st.binary(max_size=60))
def test_a_seal_is_for_one_place(head: dict[str, bytes], document: bytes) -> None:
    stored = SEALS.sealed(ID, {**head, "format": b"15"}, document)

    SEALS.check(ID, stored)
    assert is_refused(stored, ID.replace("ab", "ba"))
    assert is_refused(replace(stored, document=document + b"\0"))
    assert is_refused(seals_of(b"x" * 32).sealed(ID, stored.head, stored.document))


@given(head=FIELDS, document=st.binary(min_size=1, max_size=60), data=st.data())
def test_any_bit_of_any_field_is_noticed(
    head: dict[str, bytes], document: bytes, data: st.DataObject
) -> None:
    stored = SEALS.sealed(ID, {**head, "format": b"15"}, document)
    names = [name for name, value in stored.head.items() if value]
    name = data.draw(st.sampled_from(["document", *names]))
    value = bytearray(document if name == "document" else stored.head[name])
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))

    if name == "document":
        assert is_refused(replace(stored, document=bytes(value)))
    else:
        assert is_refused(replace(stored, head={**stored.head, name: bytes(value)}))


@given(head=FIELDS, data=st.data())
def test_a_field_that_is_added_renamed_or_taken_out_is_noticed(
    head: dict[str, bytes], data: st.DataObject
) -> None:
    stored = SEALS.sealed(ID, {**head, "format": b"15"}, b"{}")
    name = data.draw(st.sampled_from([one for one in stored.head if one != SEAL]))
    rest = {key: one for key, one in stored.head.items() if key != name}
    other = data.draw(st.text(max_size=8))
    assume(other not in stored.head and not other.endswith(":u"))
    assume(other not in {"checked", "checked_seal", "quarantined", "quarantine_seal"})

    assert is_refused(replace(stored, head=rest))
    assert is_refused(replace(stored, head={**rest, other: stored.head[name]}))
    assert is_refused(replace(stored, head={**stored.head, other: b""}))


@given(left=st.binary(max_size=8), right=st.binary(min_size=1, max_size=8))
def test_bytes_moved_to_the_next_field_are_noticed(left: bytes, right: bytes) -> None:
    head = {"0:o": left, "0:p": right, "format": b"15"}
    stored = SEALS.sealed(ID, head, b"")
    moved = {**stored.head, "0:o": left + right[:1], "0:p": right[1:]}

    assert is_refused(replace(stored, head=moved))
    assert is_refused(Stored({**stored.head, "0:p": b""}, right))
