"""Verify receipts in the process that runs a tool: offline, with only public keys.

    from keyturn.receipts import SqliteLedger, Verifier

    verifier = Verifier(
        audience="payments", keys=["keyturn/gateway+…"], ledger=SqliteLedger("used.db")
    )
    receipt = verifier.verify(text, tool="process_refund", args={"order_id": "A-1042"})

`Verifier.guarded` does this before every call of a function. This package needs no
gateway, store or network; of the requirements it uses only `cryptography` and
`pydantic`.
"""

from __future__ import annotations

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.receipts import (
    META_KEY,
    Grant,
    Ledger,
    Receipt,
    verify_receipt,
)
from keyturn.gateway.protocol.records import Effect
from keyturn.receipts.verifier import SqliteLedger, Verifier, requires_receipt

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
