"""Approve calls as they were precomputed, in a process that has a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import Gesture
from twokey.gateway.approvals.record import Approval, approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import (
    ClaimRequest,
)
from twokey.gateway.service.precomputed_starts import Start, starts_of
from twokey.gateway.store import writing
from twokey.gateway.store.handover import Handover
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

PRESSED = ANA.with_(gesture=Gesture.BUTTON, membership_age_ms=1234)
REFUND = "process_refund"
REQUEST = "sha256:" + "a" * 64


async def take_nothing(
    keys: Keys, job: Job, known: Mapping[str, Approval]
) -> Handover | None:
    """Be a worker that is busy."""
    del keys, job, known
    return None


@contextmanager
def working(store: Store) -> Generator[ServiceHarness]:
    """Give the services of a process that has a worker."""
    # No test waits for the end of a claim.
    store.lease_ms = 3_600_000
    with store.approvals.takers.offering(take_nothing):
        yield ServiceHarness(store, load_policy(POLICY, "policy.yml"))


@asynccontextmanager
async def elsewhere(
    harness: ServiceHarness, url: str
) -> AsyncGenerator[ServiceHarness]:
    """Give the services of another process on the same store."""
    other = Store(url, secrets=SECRETS, lease_ms=harness.store.lease_ms)
    other.keyring = harness.store.keyring
    yield ServiceHarness(other, harness.policy)
    await other.close()


def noted(patch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each claim that is written as it was precomputed whether it was."""
    found, plain = list[bool](), writing.write_precomputed

    async def noting(*given: Any) -> Any:
        done = await plain(*given)
        if given[2].is_fenced:
            found.append(done is not None)
        return done

    patch.setattr("twokey.gateway.store.approvals.write_precomputed", noting)
    return found


async def approved(harness: ServiceHarness, amount: float = 20) -> ClaimRequest:
    """Approve a refund as it was precomputed; return its claim, in a later moment."""
    ref, (verdict,) = await harness.submit((REFUND, {"amount": amount}))
    click = (await harness.click(verdict)).with_(request_digest=REQUEST)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)
    assert await harness.reviews.as_shown.approve(click, PRESSED)
    later(harness, verdict.item_id, by_ms=5)
    return claim_of(ref, verdict)


def later(harness: ServiceHarness, item_id: str, *, by_ms: int) -> None:
    """Let an approval have been given some time before."""
    starts = starts_of(harness.store)
    start = starts.take(item_id)
    if start is None:
        return
    known = harness.store.approvals._known  # pyright: ignore[reportPrivateUsage] - whose clock is moved
    loaded = known.latest(approval_of(item_id)[0])
    assert loaded
    kept = known._by_id[loaded.approval.id]  # pyright: ignore[reportPrivateUsage] - as above
    since_ms = start.approved.now_ms + by_ms - loaded.now_ms
    at_s = cast("Any", kept).at_s - since_ms / 1000
    known._by_id[loaded.approval.id] = replace(cast("Any", kept), at_s=at_s)  # pyright: ignore[reportPrivateUsage] - as above
    starts.keep(item_id, start)


def kept(harness: ServiceHarness, claim: ClaimRequest) -> Start | None:
    """Return the start that is kept of a call, and keep it."""
    start = starts_of(harness.store).take(claim.item_id)
    if start is not None:
        starts_of(harness.store).keep(claim.item_id, start)
    return start
