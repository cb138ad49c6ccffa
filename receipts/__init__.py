"""Verify receipts where a tool runs: offline, with public keys alone.

    from twokey.receipts import SqliteLedger, Verifier

    verifier = Verifier(
        audience="payments", keys=["twokey/gateway+…"], ledger=SqliteLedger("used.db")
    )
    receipt = verifier.verify(text, tool="process_refund", args={"order_id": "A-1042"})

`Verifier.guarded` does so before every call of a function. Nothing here needs the
gateway, a store or a network; of this package's requirements only `cryptography`,
`pydantic` and `rfc8785` are used.
"""

from __future__ import annotations

from twokey.gateway.errors import NotVerified
from twokey.gateway.protocol.effect import Effect
from twokey.gateway.protocol.receipts import (
    META_KEY,
    Grant,
    Ledger,
    Receipt,
    verify_receipt,
)
from twokey.receipts.sqlite_ledger import SqliteLedger
from twokey.receipts.verifier import Verifier, requires_receipt

__all__ = [
    "META_KEY",
    "Effect",
    "Grant",
    "Ledger",
    "NotVerified",
    "Receipt",
    "SqliteLedger",
    "Verifier",
    "requires_receipt",
    "verify_receipt",
]
