"""In any order of acts and jumps of the clock nothing open is lost and nothing leaks.

Each seed is one story of an agent, its reviewers, its executors and the clock.
"""

from __future__ import annotations

import random

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reconcile, Reject
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, Result
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.clock.test_kept_while_needed import JUMPS, OPEN
from tests.lifetimes import wrong_lifetimes
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of
from tests.service.windowed import WINDOWED, refund

POLICY = load_policy(
    WINDOWED.replace("expires_in: 1h", "expires_in: 30d"), "policy.yml"
)


class Story:
    """What happens to the calls of a few threads, one act after the other."""

    def __init__(self, harness: ServiceHarness, clock: Clock, seed: int) -> None:
        self.harness = harness
        self.clock = clock
        self.luck = random.Random(seed)  # noqa: S311 - a fixed seed, not a secret
        self.claims: list[ClaimRequest] = []
        self.running: dict[str, int] = {}
        self.open: list[ClaimRequest] = []

    async def submit(self) -> None:
        """Submit a turn of one or two calls, which ends its thread's pending calls."""
        amounts = range(1, self.luck.choice((2, 3)))
        calls = [refund(amount) for amount in amounts]
        ref, verdicts = await self.harness.submit(
            *calls, thread=self.luck.choice(("t1", "t2", "t3"))
        )
        for verdict in verdicts:
            if verdict.item_id:
                self.claims.append(claim_of(ref, verdict))

    async def decide(self, claim: ClaimRequest) -> None:
        """Decide or reconcile a call in any state."""
        item = await self.harness.item(claim.item_id)
        args = {**item.args, "amount": self.luck.randrange(1, 50)}
        decision = self.luck.choice(
            (
                Approve(),
                Approve(),
                Reject(reason="no"),
                Edit(args=args),
                Reconcile(finding=self.luck.choice(list(Finding))),
            )
        )
        click = await self.harness.click_on(claim.item_id)
        who = self.luck.choice((ANA, BEN))
        await self.harness.reviews.decide(click, decision, who)

    async def extend(self, claim: ClaimRequest) -> None:
        """Extend the time of a card."""
        approval = claim.item_id.rpartition(".")[0]
        await self.harness.reviews.extend(approval, ANA)

    async def run(self, claim: ClaimRequest) -> None:
        """An executor begins."""
        reply = await self.harness.agents.claim(claim)
        if isinstance(reply, Claimed):
            self.running[claim.item_id] = reply.fence

    async def end(self, claim: ClaimRequest) -> None:
        """An executor reports, or dies."""
        fence = self.running.get(claim.item_id)
        if fence is None:
            return
        if self.luck.random() < 0.5:
            await self.harness.owner_dies(claim.item_id)
        else:
            result = Result(ok=self.luck.random() < 0.5, summary="so")
            await self.harness.agents.finish(claim.item_id, fence, result)

    async def jump(self) -> None:
        """Let time pass, sometimes without a sweep for a while."""
        self.clock.move(days=self.luck.choice(JUMPS))
        if self.luck.random() < 0.7:
            await self.harness.sweeper.sweep()

    async def go_on(self) -> None:
        """Do one random step."""
        known = [one for one in self.claims if await self._is_known(one)]
        acts = (self.decide, self.run, self.end, self.extend)
        if known and self.luck.random() < 0.7:
            await self.luck.choice(acts)(self.luck.choice(known))
        else:
            await self.luck.choice((self.submit, self.jump))()

    async def check(self) -> None:
        """Check that open approvals are listed, and that all live as long as needed."""
        assert await wrong_lifetimes(self.harness.store.conn) == []
        lost = [one for one in self.open if not await self._is_known(one)]
        assert lost == []
        self.open = [
            claim
            for claim in self.claims
            if await self._is_known(claim)
            and (await self.harness.item(claim.item_id)).state in OPEN
        ]

    async def _is_known(self, claim: ClaimRequest) -> bool:
        approval = claim.item_id.rpartition(".")[0]
        return await self.harness.reviews.read(approval) is not None


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_open_is_never_lost_and_what_has_ended_never_stays(
    store: Store, clock: Clock, seed: int
) -> None:
    story = Story(ServiceHarness(store, POLICY), clock, seed)

    for _ in range(40):
        await story.go_on()
        await story.check()
