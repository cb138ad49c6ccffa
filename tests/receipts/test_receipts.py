"""A receipt allows exactly one call, once, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.receipts import (
    PAYLOAD_TYPE,
    Grant,
    Receipt,
    statement,
    verify_receipt,
)
from keyturn.gateway.protocol.records import Effect
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.trust.key_folder import SigningKey
from tests.receipts.sample_receipts import (
    ARGS,
    AUDIENCE,
    CTX,
    KEY,
    NOW_S,
    TOOL,
    digest_of,
    receipt,
    signed,
)

OTHER = SigningKey.from_seed("keyturn/gateway", bytes(32))


@dataclass
class Ledger:
    """Remembers used receipts in memory."""

    used: set[str] = field(default_factory=set[str])

    def use(self, jti: str, expires_at_s: int) -> bool:
        assert expires_at_s > 0
        is_new = jti not in self.used
        self.used.add(jti)
        return is_new


def verify(text: str, **changes: Any) -> Receipt:
    fields: dict[str, Any] = {
        "tool": TOOL,
        "args": ARGS,
        "keys": [KEY.public],
        "audience": AUDIENCE,
        "ledger": Ledger(),
        "now_s": NOW_S + 1,
        **changes,
    }
    return verify_receipt(text, **fields)


def reason(text: str, **changes: Any) -> str:
    """Return why a receipt was refused; its ledger stays empty unless it was used."""
    ledger = changes.setdefault("ledger", Ledger())
    with pytest.raises(NotVerified) as refused:
        verify(text, **changes)
    if refused.value.reason != "used":
        assert not ledger.used
    return refused.value.reason


def test_a_receipt_lets_its_call_run_once() -> None:
    ledger = Ledger()

    found = verify(signed(), ledger=ledger)

    assert (found.decision, found.effect) == (Grant.APPROVE, Effect.IRREVERSIBLE)
    assert [one.user for one in found.approvers] == ["U0ANA"]
    assert reason(signed(), ledger=ledger) == "used"


def test_an_older_key_still_verifies_while_it_is_configured() -> None:
    keys = [OTHER.public, KEY.public]

    assert verify(signed(), keys=keys).item == "apr_1:0"


def test_a_receipt_of_the_policy_alone_is_for_those_who_accept_it() -> None:
    text = signed(receipt(decision=Grant.POLICY, approvers=()))

    assert verify(text).decision is Grant.POLICY
    assert reason(text, needs_people=True) == "nobody_decided"


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("another tool", {"tool": "send_email"}),
    ("the tool in capitals", {"tool": TOOL.upper()}),
    ("another amount", {"args": {**ARGS, "amount": "121.00"}}),
    ("a number for a text", {"args": {**ARGS, "amount": 120.0}}),
    ("one argument more", {"args": {**ARGS, "note": ""}}),
    ("one argument less", {"args": {"order_id": "A-1042"}}),
    ("another spelling", {"args": {**ARGS, "order_id": "A-1042 "}}),
    ("a lookalike", {"args": {**ARGS, "order_id": "\u0410-1042"}}),
    ("not JSON", {"args": {**ARGS, "amount": float("nan")}}),
    ("half a surrogate pair", {"args": {**ARGS, "order_id": "\ud800"}}),
    ("too large", {"args": {"order_id": "x" * 70_000}}),
]


@pytest.mark.parametrize("change", [one for _, one in CALLS], ids=[n for n, _ in CALLS])
def test_another_call_is_refused(change: dict[str, Any]) -> None:
    assert reason(signed(), **change) == "call_differs"


TIMES: list[tuple[dict[str, int], float, str]] = [
    ({}, NOW_S - 31, "not_yet"),
    ({}, NOW_S + 930, "expired"),
    ({"exp": NOW_S + 901}, NOW_S, "too_long"),
    ({"exp": NOW_S}, NOW_S, "too_long"),
    ({"exp": NOW_S - 1}, NOW_S, "too_long"),
    ({"iat": NOW_S - 900, "exp": NOW_S + 1}, NOW_S, "too_long"),
    ({"nbf": NOW_S + 100}, NOW_S, "not_yet"),
]


@pytest.mark.parametrize(("change", "now_s", "why"), TIMES)
def test_a_late_receipt_fails(change: dict[str, int], now_s: float, why: str) -> None:
    assert reason(signed(receipt(**change)), now_s=now_s) == why


def test_clocks_may_differ_by_half_a_minute() -> None:
    assert verify(signed(), now_s=NOW_S - 30)
    assert verify(signed(), now_s=NOW_S + 929)


def _with(**changes: object) -> Callable[[], str]:
    """Change the statement of a receipt before it is signed."""

    def changed() -> str:
        body: JsonObject = json.loads(statement(receipt(), digest_of()))
        return KEY.envelope(PAYLOAD_TYPE, json.dumps({**body, **changes}).encode())

    return changed


def _says(**changes: object) -> Callable[[], str]:
    """Change what a receipt says about its call before it is signed."""
    predicate: JsonObject = json.loads(statement(receipt(), digest_of()))["predicate"]
    return _with(predicate={**predicate, **changes})


def _without(name: str) -> str:
    body: JsonObject = json.loads(statement(receipt(), digest_of()))
    cast("JsonObject", body["predicate"]).pop(name)
    return KEY.envelope(PAYLOAD_TYPE, json.dumps(body).encode())


def _resigned(**changes: object) -> Callable[[], str]:
    """Change the envelope of a receipt after it was signed."""
    envelope: dict[str, Any] = json.loads(signed())
    return lambda: json.dumps({**envelope, **changes}, separators=(",", ":"))


SUBJECT: JsonObject = json.loads(statement(receipt(), digest_of()))["subject"][0]
[SIGNATURE] = json.loads(signed())["signatures"]


def _moved_signature() -> str:
    """Return another receipt with the signature of this one."""
    mine, other = (json.loads(signed(receipt(jti=one * 32))) for one in "ab")
    return json.dumps(
        {**other, "signatures": mine["signatures"]}, separators=(",", ":")
    )


def _other_alphabet() -> str:
    """Return a receipt whose signature a reader of one base64 alphabet cannot read."""
    body, of, sig = signed(receipt(jti="e" * 32)).rpartition('"sig":"')
    assert sig.count("+") + sig.count("/") == 1
    return body + of + sig.translate(str.maketrans("+/", "-_"))


TEXTS: list[tuple[str, Callable[[], str], str]] = [
    ("nothing", lambda: "", "missing"),
    ("a word", lambda: "approved", "malformed"),
    ("an empty object", lambda: "{}", "malformed"),
    ("two of them", lambda: signed() * 2, "malformed"),
    ("very long", lambda: " " * 300_000 + signed(), "malformed"),
    ("deeply nested", lambda: "[" * 100_000, "malformed"),
    ("a key twice", lambda: '{"payload":"",' + signed()[1:], "malformed"),
    ("a line after it", lambda: signed() + "\n", "malformed"),
    ("a field more", _resigned(note=1), "malformed"),
    ("no signature", _resigned(signatures=[]), "malformed"),
    (
        "an empty signature",
        _resigned(signatures=[{**SIGNATURE, "sig": ""}]),
        "signature_wrong",
    ),
    (
        "a hint changed",
        _resigned(signatures=[{**SIGNATURE, "keyid": "x"}]),
        "malformed",
    ),
    ("the other base64 alphabet", _other_alphabet, "malformed"),
    ("seventeen signatures", _resigned(signatures=[SIGNATURE] * 17), "malformed"),
    ("its signature twice", _resigned(signatures=[SIGNATURE] * 2), "malformed"),
    ("a signature moved", _moved_signature, "signature_wrong"),
    ("another key of that name", lambda: signed(key=OTHER), "signature_wrong"),
    ("another type", lambda: signed(payload_type="application/json"), "type_wrong"),
    (
        "a type changed after signing",
        _resigned(payloadType="application/json"),
        "signature_wrong",
    ),
    (
        "another predicate",
        _with(predicateType="https://slsa.dev/provenance"),
        "type_wrong",
    ),
    (
        "another statement",
        _with(_type="https://in-toto.io/Statement/v0.1"),
        "type_wrong",
    ),
    ("two subjects", _with(subject=[SUBJECT] * 2), "type_wrong"),
    (
        "a subject of another call",
        _with(subject=[{**SUBJECT, "name": "apr_2:0"}]),
        "malformed",
    ),
    ("a rejection", _says(decision="reject"), "type_wrong"),
    ("no decision", lambda: _without("decision"), "type_wrong"),
    ("a field that is not known", _says(until="forever"), "type_wrong"),
    ("a text for a time", _says(exp="never"), "type_wrong"),
    ("an id that is none", _says(jti=""), "type_wrong"),
    ("a salt that is none", _says(salt=""), "type_wrong"),
    ("another audience", lambda: signed(receipt(aud="deployments")), "audience_wrong"),
    (
        "an audience that begins alike",
        lambda: signed(receipt(aud=AUDIENCE + ".test")),
        "audience_wrong",
    ),
    ("another salt", lambda: signed(receipt(salt="00" * 16)), "call_differs"),
    (
        "another thread",
        lambda: signed(receipt(ctx={**CTX, "thread": "t-2"})),
        "call_differs",
    ),
    (
        "another tenant",
        lambda: signed(receipt(ctx={**CTX, "tenant": "acme"})),
        "call_differs",
    ),
]


@pytest.mark.parametrize(
    ("make", "why"), [one[1:] for one in TEXTS], ids=[one[0] for one in TEXTS]
)
def test_a_misused_receipt_is_refused(make: Callable[[], str], why: str) -> None:
    assert reason(make()) == why


@pytest.mark.parametrize("keys", [[], [OTHER.public]], ids=["none", "another"])
def test_no_receipt_holds_without_its_key(keys: list[PublicKey]) -> None:
    assert reason(signed(), keys=keys) == "signature_wrong"


def test_every_flipped_bit_is_refused() -> None:
    text = signed().encode()

    accepted = [
        (place, bit)
        for place in range(len(text))
        for bit in range(8)
        if not _is_refused(_flipped(text, place, bit))
    ]

    assert accepted == []


def _flipped(text: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(text)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _is_refused(text: bytes) -> bool:
    ledger = Ledger()
    try:
        verify(text.decode("utf-8", "surrogateescape"), ledger=ledger)
    except NotVerified:
        return not ledger.used
    return False
