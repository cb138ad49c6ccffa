"""Play what was drawn: a call waits, is approved as it was precomputed, and is claimed.

Each step is done once more the long way, by another process, on a copy of the store and
at the same moment. Each key has to hold the same then.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.service.acts_elsewhere import REFUND, Elsewhere, before_claim
from tests.service.drawn_clicks import DISPLAY, ORDER, Drawn
from tests.service.harness import (
    CHLOE,
    ServiceHarness,
    claim_of,
    still_members,
)
from tests.service.starts import noted, take_nothing
from tests.service.store_clock import StoreClock
from tests.service.test_precomputed_as_stored import everything, put_back
from tests.store_secrets import SECRETS
from twokey.gateway.approvals import timing
from twokey.gateway.approvals.decisions import (
    Approve,
    Click,
    Decided,
)
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Claimed, ClaimReply, ClaimRequest, VerdictKind
from twokey.gateway.service.as_shown import Place
from twokey.gateway.service.precomputing import Precomputation
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.connection import Connection, text
from twokey.gateway.store.store import Store
from twokey.gateway.store.templates import Moment

REQUEST = "sha256:" + "a" * 64
CHANNEL, TS = "C0APPROVALS", "17.1"
LEASE_MS = 3_600_000

_READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "stream": ("XRANGE", "-", "+"),
}


async def stored(conn: Connection) -> dict[str, object]:
    """Return what each key of a store holds, but for the ids and seals of events."""
    found: dict[str, object] = {}
    for name in sorted(cast("list[bytes]", await conn.command("KEYS", "*"))):
        kind = text(await conn.command("TYPE", name))
        verb, *more = _READ[kind]
        value = await conn.command(str(verb), name, *more)
        if kind == "stream":
            rows = cast("list[tuple[bytes, dict[bytes, bytes]]]", value)
            value = [{k: v for k, v in one.items() if k != b"s"} for _, one in rows]
        found[name.decode()] = value
    return found


@dataclass
class World:
    """A store, its processes, and the call that waits in it.

    Attributes:
        store: looks at what is stored.
        url: of the server.
        clock: of all of them.
        drawn: what is to happen.
        closing: closes the processes.
        approved: whether it was approved as it was precomputed.
        started: whether it was started so.
    """

    store: Store
    url: str
    clock: StoreClock
    drawn: Drawn
    closing: AsyncExitStack
    moments: list[Moment | None] = field(default_factory=list[Moment | None])
    approved: bool = False
    started: bool = False

    async def process(self, policy: str = "") -> ServiceHarness:
        """Start a process, which knows nothing of what the others did."""
        opened = Store(self.url, secrets=SECRETS, lease_ms=LEASE_MS)
        opened.keyring = self.store.keyring
        self.closing.push_async_callback(opened.close)
        rules = load_policy(policy or self.drawn.decided_by, "policy.yml")
        harness = ServiceHarness(opened, rules)
        self.clock.keep_in(harness)
        return harness

    async def play(self) -> None:
        """Play what was drawn."""
        drawn, clock = self.drawn, self.clock
        theirs = await self.process(drawn.opened_by)
        calls: list[tuple[str, JsonObject]] = [
            (REFUND, {"amount": amount, "order": ORDER if not n else f"o{n + 1}"})
            for n, amount in enumerate(drawn.amounts)
        ]
        ref, verdicts = await theirs.submit(*calls, thread="t0")
        verdict = verdicts[0]
        if verdict.kind is not VerdictKind.HOLD:
            return
        theirs = await self.process()
        clock.move(1_500)
        elsewhere = Elsewhere(theirs, drawn, clock, verdict.item_id)
        for act in drawn.before:
            await elsewhere.acts[act]()
        ours = await self.process()
        self.closing.enter_context(ours.store.approvals.takers.offering(take_nothing))
        click = await self._shown(ours, verdict.item_id)
        approval = await ours.approval(verdict.item_id)
        ours.reviews.as_shown.precompute(click.approval)
        if drawn.passed_ms < 0:
            ends_ms = timing.end_of(approval, approval.items[click.index])
            clock.move(ends_ms + drawn.passed_ms - clock.now_ms)
        else:
            clock.move(drawn.passed_ms)
        for act in drawn.meanwhile:
            await elsewhere.acts[act]()
        if "the policy is loaded again" in drawn.meanwhile:
            ours.policy = load_policy(drawn.decided_by, "policy.yml")
        clock.now_ms += drawn.apart_ms
        if not drawn.is_plain:
            click = click.with_(version=click.version + 1)
        await self._approve(ours, click)
        if self.approved:
            await self._claim(ours, claim_of(ref, verdict))

    async def _shown(self, ours: ServiceHarness, item_id: str) -> Click:
        """Draw the card of the call; return a click on its button."""
        approval_id, _ = approval_of(item_id)
        keys, cards = ours.store.keys_of_tenant("default"), ours.store.cards
        await cards.posted(keys, approval_id, channel=CHANNEL, ts=TS)
        await cards.shown(
            keys, approval_id, tenant="default", rev=1, display_digest=DISPLAY
        )
        await ours.reviews.read_as_of_now(approval_id)
        click = await ours.click_on(item_id)
        return click.with_(request_digest=REQUEST, display_digest=DISPLAY)

    async def _approve(self, ours: ServiceHarness, click: Click) -> None:
        conn, who = self.store.conn, self.drawn.reviewer
        before, as_it_was = await everything(conn), await stored(conn)
        place = Place(CHANNEL, TS, who.user, display=DISPLAY)
        self.moments.clear()

        self.approved = await ours.reviews.as_shown.approve(click, who, place)

        after = await stored(conn)
        if not self.approved:
            assert after == as_it_was
            return
        kept = await everything(conn)
        [moment] = self.moments
        assert moment
        await put_back(conn, before)
        other = await self.process()
        if "somebody delegates to them" in self.drawn.meanwhile:
            who = who.with_(stands_in_for=(CHLOE,))
        read = await other.store.approvals.load(click.approval)
        assert read
        seen = Loaded(read.approval, moment.now_ms, stored=read.stored)
        outcome = await other.reviews.decide(
            click, Approve(), who, voters=still_members, seen=seen
        )
        assert isinstance(outcome, Decided), outcome
        assert await stored(conn) == after
        same_lifetimes(await everything(conn), kept)
        await put_back(conn, kept)

    async def _claim(self, ours: ServiceHarness, claim: ClaimRequest) -> None:
        conn, other = self.store.conn, await self.process()
        for act in self.drawn.before_claim:
            await before_claim(act, ours, other, self.drawn)
            if act == "another worker claims it":
                await other.agents.claim(claim.with_(owner="worker-2"))
            if act == "its call has another id":
                claim = claim.with_(tool_call_id="c9")
        self.clock.move(self.drawn.claimed_after_ms)
        before = await everything(conn)
        with pytest.MonkeyPatch.context() as patch:
            written = noted(patch)
            reply = await ours.agents.claim(claim)
        after, kept = await stored(conn), await everything(conn)
        self.started = written == [True]
        await put_back(conn, before)
        other = await self.process()
        other.policy, other.store.lease_ms = ours.policy, ours.store.lease_ms
        by_other = await other.agents.claim(claim)
        assert without_receipt(reply) == without_receipt(by_other)
        assert await stored(conn) == after
        same_lifetimes(await everything(conn), kept)


def without_receipt(reply: ClaimReply) -> ClaimReply:
    return reply.with_(receipt="") if isinstance(reply, Claimed) else reply


def same_lifetimes(
    one: dict[bytes, tuple[int, bytes]], other: dict[bytes, tuple[int, bytes]]
) -> None:
    """Compare about how long keys live: the server's own clock goes on."""
    assert one.keys() == other.keys()
    for name, (lives_ms, _) in one.items():
        others_ms, _ = other[name]
        assert (lives_ms == 0) == (others_ms == 0), name
        assert abs(lives_ms - others_ms) < 60_000, name


async def played(store: Store, url: str, what: Drawn) -> World:
    """Play what was drawn, in a store that is empty before and afterwards."""
    await store.conn.command("FLUSHALL")
    clock, plain = StoreClock(), Precomputation.moment
    with pytest.MonkeyPatch.context() as patch:
        async with AsyncExitStack() as closing:
            clock.set(patch)
            world = World(store, url, clock, what, closing)

            def moment(self: Precomputation, *given: Any) -> Moment | None:
                found = plain(self, *given)
                world.moments.append(found)
                return found

            patch.setattr(Precomputation, "moment", moment)
            try:
                await world.play()
            except AssertionError as error:
                error.add_note(f"of {what!r}")
                raise
    await store.conn.command("FLUSHALL")
    return world
