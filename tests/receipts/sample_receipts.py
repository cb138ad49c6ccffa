"""A receipt as the gateway makes it, for tests to change."""

from __future__ import annotations

from typing import Any

from keyturn.gateway.protocol.digest import action_document, action_hash
from keyturn.gateway.protocol.receipts import (
    PAYLOAD_TYPE,
    Approver,
    Grant,
    Receipt,
    statement,
)
from keyturn.gateway.protocol.records import Effect, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.trust.key_folder import SigningKey

KEY = SigningKey.from_seed("keyturn/gateway", bytes(range(32)))
NOW_S = 1_800_000_000
AUDIENCE = "payments"
TOOL = "process_refund"
ARGS: JsonObject = {"order_id": "A-1042", "amount": "120.00"}
CTX = {
    "tenant": "default",
    "agent": "billing",
    "thread": "t-1",
    "ns": "",
    "message_id": "m-1",
    "tool_call_id": "c-1",
}
SALT = "5a" * 16


def receipt(**changes: Any) -> Receipt:
    """Return a receipt that is valid for fifteen minutes."""
    fields: dict[str, Any] = {
        "decision": Grant.APPROVE,
        "jti": "0123456789abcdef" * 2,
        "attempt": 1,
        "aud": AUDIENCE,
        "iat": NOW_S,
        "nbf": NOW_S,
        "exp": NOW_S + 900,
        "approval": "apr_1",
        "item": "apr_1:0",
        "version": 1,
        "tier": Tier.APPROVE,
        "effect": Effect.IRREVERSIBLE,
        "policy": "sha256:" + "1" * 64,
        "display": "sha256:" + "2" * 64,
        "idempotency_key": "sha256:" + "3" * 64,
        "approvers": (
            Approver(
                team="T1", user="U0ANA", at=NOW_S, slack_request="sha256:" + "4" * 64
            ),
        ),
        "ctx": CTX,
        "salt": SALT,
        **changes,
    }
    return Receipt.model_validate(fields)


def digest_of(
    tool: str = TOOL,
    args: JsonObject = ARGS,
    ctx: dict[str, str] = CTX,
    salt: str = SALT,
) -> str:
    """Return the hash of a call."""
    return action_hash(action_document(tool=tool, args=args, ctx=ctx, salt=salt))


def signed(
    of: Receipt | None = None,
    digest: str | None = None,
    key: SigningKey = KEY,
    payload_type: str = PAYLOAD_TYPE,
) -> str:
    """Return the text of a receipt."""
    body = statement(of or receipt(), digest or digest_of())
    return key.envelope(payload_type, body)
