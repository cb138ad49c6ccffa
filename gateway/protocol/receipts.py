"""Receipts: signed proof, for the tool's side, that exactly one call may run.

A receipt is a DSSE envelope around an in-toto Statement v1. Its subject is the hash of
the action document, so it fits one call with its arguments and no other. The gateway
makes it after it has verified people's signatures, and it is valid for minutes.
Verifying it needs only public keys: no store, no network.

`verify_receipt` sets the order of the checks. The single use is checked last: a receipt
that is refused for another reason stays usable.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal, Protocol

from pydantic import Field, ValidationError

from keyturn.gateway.errors import BadJson, NotVerified
from keyturn.gateway.protocol.digest import (
    BusinessState,
    action_document,
    action_hash,
    canonical,
    with_state,
)
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.records import Effect, Record, Tier
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object

# Read signed envelopes of the Dead Simple Signing Envelope format, DSSE v1.0.2.
#
# An envelope is a JSON object with a payload, its type, and signatures over both.
# Readers get the verified bytes and never parse the envelope again.

MAX_ENVELOPE_BYTES = 256 * 1024
"""Longest text that is parsed: three times the largest payload."""

MAX_SIGNATURES = 16


class Signature(Record):
    """A signature, with a hint at its key."""

    keyid: str = ""
    sig: str


class Envelope(Record):
    """An envelope as in JSON; no part of it is verified."""

    payload: str
    payloadType: str  # noqa: N815 - as the format spells it
    signatures: tuple[Signature, ...]

    def to_text(self) -> str:
        """Return its JSON text; equal envelopes have equal texts."""
        return json.dumps(self.model_dump(), separators=(",", ":"))


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the signed bytes: type and payload with their lengths in bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def enveloped(
    payload_type: str, payload: bytes, signatures: Iterable[tuple[str, bytes]]
) -> Envelope:
    """Put a payload into an envelope with signatures, each with its key's label."""
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payloadType=payload_type,
        signatures=tuple(
            Signature(keyid=label, sig=base64.b64encode(signature).decode())
            for label, signature in signatures
        ),
    )


def parse_envelope(text: str | bytes) -> Envelope:
    """Return the envelope of a text.

    Raises:
        NotVerified: ``malformed``.
    """
    if len(text) > MAX_ENVELOPE_BYTES:
        raise NotVerified("malformed", f"it is larger than {MAX_ENVELOPE_BYTES} bytes")
    try:
        found = Envelope.model_validate(parse_object(text))
    except (BadJson, ValidationError) as error:
        raise NotVerified("malformed", "it is not a DSSE envelope") from error
    if not 0 < len(found.signatures) <= MAX_SIGNATURES:
        raise NotVerified(
            "malformed",
            f"it needs 1 to {MAX_SIGNATURES} signatures, not {len(found.signatures)}",
        )
    return found


def verified(
    envelope: Envelope, *, payload_type: str, keys: Sequence[PublicKey]
) -> tuple[bytes, PublicKey]:
    """Return the payload, and the first of the keys that has signed it.

    The key ids in the envelope are ignored (DSSE, protocol.md): each signature is tried
    with each key.

    Raises:
        NotVerified: ``malformed``, ``type_wrong`` or ``signature_wrong``.
    """
    payload = _decoded(envelope.payload)
    message = pae(envelope.payloadType, payload)
    for signature in envelope.signatures:
        raw = _decoded(signature.sig)
        for key in keys:
            if key.has_signed(message, raw):
                if envelope.payloadType != payload_type:
                    raise NotVerified(
                        "type_wrong", f"its type is {envelope.payloadType[:100]!r}"
                    )
                return payload, key
    raise NotVerified("signature_wrong", "no trusted key has signed it")


def _decoded(text: str) -> bytes:
    # Both base64 alphabets, as required by the format.
    try:
        return base64.b64decode(text.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotVerified("malformed", "a part of it is not base64") from error


_STANDARD = str.maketrans("-_", "+/")


PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:keyturn:decision:v1"

META_KEY = "dev.keyturn/receipt"
"""Member of ``_meta`` of a tool call to an MCP server (Model Context Protocol)."""

LIFETIME_S = 15 * 60
"""Longest lifetime of a receipt, from the start of its claim; none is renewed."""

USABLE_S = 400 * 24 * 60 * 60
"""How long receipts with one id can be used, from the time of the first one.

A ledger has to remember each use for this long. An agent that gives its claim back gets
another receipt with the same id at its next claim, which may be much later.
"""

SKEW_S = 30
"""Tolerated difference between the clocks of the gateway and of the verifier."""

_MAX_NAME = 200


class Grant(StrEnum):
    """Why a call may run: a decision of people, or only the policy."""

    APPROVE = "approve"
    EDIT = "edit"
    POLICY = "policy"


class Approver(Record):
    """A person whose signed decision counts, without the name."""

    team: str
    user: str
    role: str = ""
    at: int
    slack_request: str


class BatchPlace(Record):
    """Position of the call on a card of several."""

    digest: str
    index: int = Field(ge=0)
    n: int = Field(ge=1)


class Receipt(Record):
    """The content of a receipt. Times are seconds since 1970.

    ``jti`` is the id of one execution. A call that was given back unused keeps it at
    its next claim, so that giving back a used claim gains no second use. ``attempt`` is
    the number of the claim.

    ``ctx``, ``salt`` and ``state`` are those of the action document. Together with the
    tool and the arguments of the real call they produce its hash.
    """

    decision: Grant
    jti: str = Field(pattern=r"^[0-9a-f]{32}$")
    attempt: int = Field(ge=1)
    aud: str
    iat: int
    nbf: int
    exp: int
    approval: str
    item: str
    version: int
    tier: Tier
    effect: Effect
    policy: str
    display: str
    original: str = ""
    edit: tuple[JsonObject, ...] = ()
    batch: BatchPlace | None = None
    idempotency_key: str
    approvers: tuple[Approver, ...]
    ctx: dict[str, str]
    salt: str = Field(pattern=r"^[0-9a-f]{32}$")
    state: BusinessState | None = None


class _Digest(Record):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Subject(Record):
    name: str
    digest: _Digest


class Statement(Record):
    """The in-toto statement around a receipt; its subject is the action's hash."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[_Subject]
    predicateType: Literal["urn:keyturn:decision:v1"]  # noqa: N815 - in-toto
    predicate: Receipt


class Ledger(Protocol):
    """Store of used receipts."""

    def use(self, jti: str, expires_at_s: int) -> bool:
        """Record the use of a receipt; return False if it was recorded before.

        Of two concurrent calls, only one may get True. A record must survive crashes
        until ``expires_at_s``, more than a year later: an agent may get another receipt
        with the same id until then.
        """
        ...


def statement(receipt: Receipt, digest: str) -> bytes:
    """Return the bytes to sign: a receipt for the action with this hash."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": receipt.item,
                    "digest": {"sha256": digest.removeprefix("sha256:")},
                }
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": receipt.model_dump(mode="json"),
        }
    )


def verify_receipt(
    text: str,
    *,
    tool: str,
    args: JsonObject,
    keys: Sequence[PublicKey],
    audience: str,
    ledger: Ledger,
    now_s: float,
    needs_people: bool = False,
) -> Receipt:
    """Return the content of a receipt, if exactly this call may run now, once.

    Args:
        text: the receipt passed on by the agent.
        tool: name of the tool that is about to run.
        args: the arguments that it is about to run with.
        keys: the gateway's public keys: the current one and older ones.
        audience: the gateway's name for the service that runs the tool.
        ledger: store of used receipts.
        now_s: seconds since 1970.
        needs_people: refuse a receipt without a decision of people.

    Raises:
        NotVerified: with one of ``missing``, ``malformed``, ``signature_wrong``,
            ``type_wrong``, ``audience_wrong``, ``too_long``, ``not_yet``, ``expired``,
            ``nobody_decided``, ``call_differs``, ``used``.
    """
    if not text:
        raise NotVerified("missing", "the call came without a receipt")
    receipt, digest = read_receipt(text, keys)
    if receipt.aud != audience:
        raise NotVerified(
            "audience_wrong",
            f"it is for {receipt.aud[:_MAX_NAME]!r}, and this is {audience!r}",
        )
    check_time(receipt, now_s)
    if needs_people and (receipt.decision is Grant.POLICY or not receipt.approvers):
        raise NotVerified("nobody_decided", "no person has decided about this call")
    if _hash_of(tool, args, receipt) != digest:
        raise NotVerified(
            "call_differs", "it was given for another tool, or for other arguments"
        )
    # Last: a receipt that is refused above stays usable for its call.
    if not ledger.use(receipt.jti, receipt.exp + USABLE_S + SKEW_S):
        raise NotVerified("used", "a call has already run with it")
    return receipt


def read_receipt(text: str, keys: Sequence[PublicKey]) -> tuple[Receipt, str]:
    """Return the content of a signed receipt, and the action's hash.

    It is not compared with a call or a clock: this is for auditors.

    Raises:
        NotVerified: ``malformed``, ``signature_wrong`` or ``type_wrong``.
    """
    envelope = parse_envelope(text)
    payload, key = verified(envelope, payload_type=PAYLOAD_TYPE, keys=keys)
    # One text for one receipt: a log of receipts must not contain two texts of one
    # receipt. A changed hint or padding shows that it was modified.
    signature = _decoded(envelope.signatures[0].sig)
    written = enveloped(PAYLOAD_TYPE, payload, [(key.label, signature)])
    if text != written.to_text():
        raise NotVerified("malformed", "it is not written as the gateway writes it")
    try:
        found = Statement.model_validate(parse_object(payload))
    except (BadJson, ValidationError) as error:
        raise NotVerified("type_wrong", "it is no receipt of this version") from error
    [subject] = found.subject
    if subject.name != found.predicate.item:
        raise NotVerified("malformed", "its subject is another call")
    return found.predicate, f"sha256:{subject.digest.sha256}"


def check_time(receipt: Receipt, now_s: float) -> None:
    """Check that a receipt is valid at this time, in seconds since 1970.

    Raises:
        NotVerified: ``too_long``, ``not_yet`` or ``expired``.
    """
    if receipt.exp - receipt.iat > LIFETIME_S or receipt.exp <= receipt.nbf:
        raise NotVerified(
            "too_long", f"it has to live for more than 0 and at most {LIFETIME_S} s"
        )
    if now_s < receipt.nbf - SKEW_S:
        raise NotVerified(
            "not_yet", f"it is valid in {receipt.nbf - now_s:.0f} s; compare the clocks"
        )
    if now_s >= receipt.exp + SKEW_S:
        raise NotVerified(
            "expired",
            f"it has ended {now_s - receipt.exp:.0f} s ago; claim again, and compare "
            "the clocks if it is new",
        )


def _hash_of(tool: str, args: JsonObject, receipt: Receipt) -> str:
    try:
        document = action_document(
            tool=tool, args=args, ctx=receipt.ctx, salt=receipt.salt
        )
        if receipt.state is not None:
            document = with_state(document, receipt.state)
    except BadJson as error:
        raise NotVerified(
            "call_differs", "the arguments are not strict JSON"
        ) from error
    return action_hash(document)
