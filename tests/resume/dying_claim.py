"""A process that dies between the ledger and Redis, as it claims a call.

    python -m tests.resume.dying_claim URL PLACE FOLDER CLAIM

CLAIM is a claim as JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from keyturn.gateway.approvals.executing import Attempt
from keyturn.gateway.protocol.wire import ClaimRequest
from keyturn.gateway.resume.ledger import DatabaseLedger, ledger_of
from keyturn.gateway.store.store import Store
from tests.resume.ledgers import LEASE_MS
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS


class Dying(DatabaseLedger):
    """A ledger whose process is killed as soon as something is spent."""

    async def spend(
        self,
        attempts: Sequence[Attempt],
        unspent: Sequence[Attempt] = (),
        *,
        now_ms: int,
        again: bool = False,
    ) -> None:
        await super().spend(attempts, unspent, now_ms=now_ms, again=again)
        os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, place: str, claim: str) -> None:
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    async with ledger_of(store, place) as ledger:
        ledger.__class__ = Dying
        await ServiceHarness(store).agents.claim(
            ClaimRequest.model_validate_json(claim)
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
