"""Measure what signatures and receipts add to a decision and to a claim.

The same approvals are decided and claimed with keys and without, in turns, on one
store. The receipts of the claims are then issued again and verified, in this process
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench.decision_cost import CLAIM, DECISION, FULL, QUICK, Round, counted, play
from bench.decision_to_tool import Plan
from bench.stats import Figure, Measured, NotMeasured, plain, ratio
from bench.store_secrets import SECRETS
from twokey.gateway.protocol.digest import action_args
from twokey.gateway.protocol.receipts import (
    PAYLOAD_TYPE,
    Receipt,
    read_receipt,
    statement,
    verify_receipt,
)
from twokey.gateway.protocol.wire import Claimed
from twokey.gateway.store.open_store import open_store
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.keyring import Keyring
from twokey.gateway.trust.signing_key import SigningKey

T = TypeVar("T")

TITLE = "Signatures and receipts"

ISSUE, VERIFY = "issue a receipt", "verify a receipt"
_P99 = 0.99
_MOST_MS = 1.0
_AGAIN = 20
"""How often each receipt is issued and verified."""


class _Unused:
    """A ledger that keeps nothing: what it costs to record a use is the disk's."""

    def use(self, jti: str, expires_at_s: int) -> bool:
        """Accept every use."""
        return bool(jti and expires_at_s)


async def measure(*, is_quick: bool = False) -> Figure:
    """Decide and claim with keys and without, in turns."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Measure as much as the plan says.

    Raises:
        NotMeasured: when a step was refused.
    """
    with_keys, without = list[Round](), list[Round]()
    issued, verified = list[tuple[float, ...]](), list[tuple[float, ...]]()
    with TemporaryDirectory(prefix="tk-bench-") as folder, counted() as sent:
        keyring = Keyring(Path(folder, "keys"), makes=Role)
        keyring.make_missing(datetime.fromtimestamp(0, UTC))
        async with open_store(None, Path(folder), secrets=SECRETS) as store:
            await play(store, Round(sent), "warm-up", 3)
            for turn in range(plan.rounds):
                store.keyring = None
                without.append(Round(sent))
                await play(store, without[-1], f"plain-{turn}", plan.approvals)
                store.keyring = keyring
                with_keys.append(Round(sent))
                granted = await play(
                    store, with_keys[-1], f"signed-{turn}", plan.approvals
                )
                issue, verify = _alone(granted, keyring)
                issued.append(issue)
                verified.append(verify)
    signed, unsigned, claim, plain_claim = (
        Measured(name, "ms", tuple(tuple(one.taken[step]) for one in rounds))
        for name, step, rounds in (
            ("decision, signed", DECISION, with_keys),
            ("decision, unsigned", DECISION, without),
            ("claim with a receipt", CLAIM, with_keys),
            ("claim without", CLAIM, without),
        )
    )
    issue_ms = Measured(ISSUE, "ms", tuple(issued))
    verify_ms = Measured(VERIFY, "ms", tuple(verified))
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} approvals with keys, and as many "
        "without; Valkey with appendfsync always.\n"
        "A claim verifies the signature of the vote and issues the receipt.\n"
        "Issuing and verifying are timed by the processor.",
        (signed, unsigned, claim, plain_claim, issue_ms, verify_ms),
        (
            ratio("decision, signed / unsigned, p50", signed, unsigned, at_most=1.3),
            ratio("claim with a receipt / without, p50", claim, plain_claim),
            plain(f"{ISSUE}, p99", issue_ms, share=_P99, at_most=_MOST_MS),
            plain(f"{VERIFY}, p99", verify_ms, share=_P99, at_most=_MOST_MS),
        ),
    )


def _alone(
    granted: list[Claimed], keyring: Keyring
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Issue and verify the receipts of claims again; return the times of both."""
    key, keys = keyring.signing(Role.GATEWAY), keyring.verifying(Role.GATEWAY)
    issue, verify = list[float](), list[float]()
    for one in granted * _AGAIN:
        receipt, digest = read_receipt(one.receipt, keys)
        text = _timed(issue, partial(_issued, key, receipt, digest))
        if text != one.receipt:
            raise NotMeasured("A receipt was issued differently.")
        _timed(
            verify,
            partial(
                verify_receipt,
                one.receipt,
                tool="refund",
                args=action_args(one.action),
                keys=keys,
                audience=receipt.aud,
                ledger=_Unused(),
                now_s=receipt.iat,
            ),
        )
    return tuple(issue), tuple(verify)


def _issued(key: SigningKey, receipt: Receipt, digest: str) -> str:
    return key.envelope(PAYLOAD_TYPE, statement(receipt, digest))


def _timed(times: list[float], work: Callable[[], T]) -> T:
    # Of the processor: it neither waits for anything nor for anybody.
    began = time.thread_time()
    result = work()
    times.append(1000 * (time.thread_time() - began))
    return result
