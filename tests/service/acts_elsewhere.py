"""What another process does with a call that waits, or with those beside it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from tests.service.drawn_clicks import DISPLAY, ORDER, Drawn
from tests.service.harness import ANA, BEN, CHLOE, ServiceHarness, still_members
from tests.service.store_clock import StoreClock
from twokey.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
    Reviewer,
)
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import VerdictKind
from twokey.gateway.store.freezes import FreezeScope, ScopeKind

REFUND = "process_refund"
TOOL = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
AGENT = FreezeScope(kind=ScopeKind.AGENT, name="support")
NO = Reject(reason="no")

Act = Callable[[], Awaitable[object]]


class Elsewhere:
    """A process that knows nothing of what others remember.

    Args:
        harness: its services.
        drawn: what was drawn.
        clock: of all processes.
        item_id: the call.

    Attributes:
        acts: by their names in `tests.service.drawn_clicks`.
    """

    def __init__(
        self, harness: ServiceHarness, drawn: Drawn, clock: StoreClock, item_id: str
    ) -> None:
        self._harness, self._drawn, self._clock = harness, drawn, clock
        self._item_id, (self._approval, _) = item_id, approval_of(item_id)
        self._keys = harness.store.keys_of_tenant("default")
        edited = Edit(args={"amount": drawn.amounts[0] + 1, "order": ORDER})
        freezes, times = harness.reviews.freezes, harness.reviews.times
        self.acts: dict[str, Act] = {
            "a call like it was approved": lambda: self._like_it(Approve()),
            "a call like it was rejected": lambda: self._like_it(NO),
            "somebody voted": lambda: self._on_it(Approve(), CHLOE),
            "somebody edited it": lambda: self._on_it(edited, BEN),
            "it was given more time": lambda: times.extend(self._approval, ANA),
            "another call of the card was rejected": lambda: self._on_another(NO),
            "it was shown with a call like it": self._shown_with_one_like_it,
            "it was approved too soon": lambda: self._on_it(Approve(), BEN),
            "the clock of the store went back": self._clock_back,
            "it waited": self._waited,
            "the tool is frozen": lambda: freezes.freeze(TOOL, "U0ANA", "stop"),
            "the agent is frozen": lambda: freezes.freeze(AGENT, "U0ANA", "stop"),
            "somebody delegates to them": self._delegated,
            "somebody votes": lambda: self._on_it(Approve(), CHLOE),
            "another call of the card is approved": lambda: self._on_another(Approve()),
            "a call like it is approved": lambda: self._like_it(Approve()),
            "it is given more time": lambda: times.extend(self._approval, ANA),
            "its card is drawn again": self._drawn_again,
            "the policy is loaded again": self._nothing,
        }

    async def _on_it(self, decision: Decision, who: Reviewer) -> None:
        click = await self._harness.click_on(self._item_id)
        reviews = self._harness.reviews
        await reviews.decide(click, decision, who, voters=still_members)

    async def _on_another(self, decision: Decision) -> None:
        approval = await self._harness.approval(self._item_id)
        if len(approval.items) > 1:
            click = await self._harness.click_on(f"{self._approval}.1")
            reviews = self._harness.reviews
            await reviews.decide(click, decision, BEN, voters=still_members)

    async def _like_it(self, decision: Decision) -> None:
        args: JsonObject = {"amount": self._drawn.amounts[0], "order": ORDER}
        _, [verdict] = await self._harness.submit((REFUND, args), thread="t-like-it")
        if verdict.kind is not VerdictKind.HOLD:
            return
        click = await self._harness.click(verdict)
        # Twice: the first time may have been too soon.
        for who in (BEN, BEN, ANA, CHLOE):
            reviews = self._harness.reviews
            await reviews.decide(click, decision, who, voters=still_members)
            self._clock.move(2_000)

    async def _shown_with_one_like_it(self) -> None:
        await self._like_it(Approve())
        await self._on_it(Approve(), BEN)

    async def _clock_back(self) -> None:
        self._clock.now_ms -= 5_000

    async def _waited(self) -> None:
        self._clock.move(45_000)

    async def _delegated(self) -> None:
        key, user = self._keys.delegations("default"), self._drawn.reviewer.user
        row = f"{user} 9000000000000"
        await self._harness.store.conn.command("HSET", key, CHLOE.user, row)

    async def _drawn_again(self) -> None:
        await self._harness.store.cards.shown(
            self._keys,
            self._approval,
            tenant="default",
            rev=2,
            display_digest=DISPLAY.replace("d", "e"),
        )

    async def _nothing(self) -> None:
        """Leave it to the process in which somebody clicks."""


async def before_claim(
    act: str, ours: ServiceHarness, theirs: ServiceHarness, what: Drawn
) -> None:
    """Do what was drawn between an approval and its claim."""
    match act:
        case "the tool is frozen":
            await theirs.reviews.freezes.freeze(TOOL, "U0ANA", "stop")
        case "the policy is loaded again":
            ours.policy = load_policy(what.decided_by, "policy.yml")
        case "the policy forbids it":
            rules = json.loads(what.decided_by)
            rules["tools"][REFUND] = {"tier": "deny"}
            ours.policy = load_policy(json.dumps(rules), "policy.yml")
        case "its lease is another one":
            ours.store.lease_ms += 1
        case _:
            """It is about the claim."""
