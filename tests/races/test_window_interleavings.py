"""No interleaving of calls and decisions exceeds a window unseen.

Two actors are played in every order of their round trips, more actors in orders that
Hypothesis chooses. At the end the store is compared with a model of one line: calls
that may still run, or ran, count once each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.decisions import Approve, Click, Edit, Outcome, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.evaluate import effect_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import PrecedentFold
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, VerdictKind
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.limits.history import read
from keyturn.gateway.store.store import Store
from tests.levels import examples, size
from tests.races.interleaver import Choose, Interleaver, every_order
from tests.service.harness import ANA, BEN, POLICY, ServiceHarness
from tests.service.windowed import refund, refunded, windowed
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

LIMIT = 1000
"""More than this in a day takes two people."""

_LIVE = {ItemState.PENDING, ItemState.AUTHORIZED}
_number = itertools.count()


@dataclass(frozen=True)
class Deed:
    """What one actor does: a call of an amount, or a word about one that waits.

    Attributes:
        what: ``submit``, ``approve``, ``edit``, ``reject``, ``expire`` or ``withdraw``.
        amount: of a new or an edited call.
        place: which of the calls that wait, counted round.
    """

    what: str
    amount: int = 0
    place: int = 0


@dataclass
class Scene:
    """One customer whose refunds are asked for and decided by several at once."""

    harness: ServiceHarness
    customer: str = field(default_factory=lambda: f"c{next(_number)}")
    items: list[str] = field(default_factory=list[str])

    async def submit(self, amount: int) -> None:
        """Request a refund in a separate thread."""
        tool, args = refund(amount, self.customer)
        call = ProposedCall(tool=tool, args=args, tool_call_id="c0")
        ref = TurnRef(agent="a", thread=f"t{next(_number)}", message_id="m")
        (verdict,) = await self.harness.agents.submit(Turn(ref=ref, calls=(call,)))
        if verdict.kind is VerdictKind.HOLD:
            self.items.append(verdict.item_id)

    async def clicks(self) -> list[Click]:
        """Return a click on each call in its current version."""
        return [await self.harness.click_on(item) for item in self.items]

    async def do(self, deed: Deed, clicks: list[Click]) -> None:
        """Do what an actor does."""
        if deed.what == "submit":
            await self.submit(deed.amount)
            return
        place = deed.place % len(clicks)
        click, reviews = clicks[place], self.harness.reviews
        match deed.what:
            case "approve":
                await reviews.decide(click, Approve(), ANA)
            case "edit":
                _, args = refund(deed.amount, self.customer)
                await reviews.decide(click, Edit(args=args), BEN)
            case "reject":
                await reviews.decide(click, Reject(reason="no"), BEN)
            case "expire":
                await self.harness.overdue(click.approval)
                await self.harness.sweeper.expire(click.approval)
            case _:
                await self.harness.agents.withdraw_items(frozenset({self.items[place]}))

    async def live(self) -> list[Item]:
        """Return the calls that may still run."""
        items = [await self.harness.item(one) for one in self.items]
        return [item for item in items if item.state in _LIVE]

    async def ensure_as_the_model_says(self) -> None:
        """Check what counts, that no sum was passed unseen, and what the next needs."""
        live = await self.live()
        below = [amount_of(item) for item in live if item.tier is Tier.APPROVE]
        assert sum(below) <= LIMIT, below
        counted = sum(map(amount_of, live))
        assert await refunded(self.harness, self.customer) == counted
        for amount, tier in ((0, Tier.APPROVE), (1, Tier.ESCALATE)):
            await self.submit(max(0, LIMIT - counted) + amount)
            item = await self.harness.item(self.items.pop())
            assert item.tier is (tier if counted <= LIMIT else Tier.ESCALATE)
            await self.harness.agents.withdraw_items(frozenset({item.id}))


def amount_of(item: Item) -> int:
    """Return the amount that a call would refund in its current version."""
    amount = item.args["amount"]
    assert isinstance(amount, int)
    return amount


async def play(
    store: Store, begun: list[int], deeds: list[Deed], choose: Choose
) -> int:
    """Play one scene; return how many steps it had."""
    scene = Scene(windowed(store))
    for amount in begun:
        await scene.submit(amount)
    clicks = await scene.clicks()
    with pytest.MonkeyPatch.context() as patch:
        interleaver = Interleaver(store.conn, patch)
        await interleaver.run([scene.do(deed, clicks) for deed in deeds], choose)
    await scene.ensure_as_the_model_says()
    return interleaver.steps


PAIRS: list[tuple[list[int], Deed, Deed]] = [
    ([], Deed("submit", 900), Deed("submit", 900)),
    ([10], Deed("submit", 900), Deed("edit", 900)),
    ([10, 10], Deed("edit", 900), Deed("edit", 900, place=1)),
    ([900], Deed("submit", 900), Deed("reject")),
    ([900], Deed("submit", 900), Deed("approve")),
    ([900], Deed("submit", 900), Deed("expire")),
    ([900], Deed("submit", 900), Deed("withdraw")),
    ([500], Deed("edit", 900), Deed("reject")),
    ([500], Deed("edit", 900), Deed("edit", 1000)),
    ([500], Deed("approve"), Deed("edit", 900)),
    ([500], Deed("expire"), Deed("edit", 900)),
]


@pytest.mark.parametrize(("begun", "first", "second"), PAIRS)
async def test_two_at_once_in_every_order(
    store: Store, begun: list[int], first: Deed, second: Deed
) -> None:
    orders = 0

    for choose in itertools.islice(every_order(), size(deep=100_000, short=15)):
        assert await play(store, begun, [first, second], choose) > 1
        orders += 1

    assert orders >= 10


DEEDS = st.builds(
    Deed,
    what=st.sampled_from(
        ["submit", "submit", "edit", "approve", "reject", "expire", "withdraw"]
    ),
    amount=st.sampled_from([1, 100, 450, 550, 900, 1000]),
    place=st.integers(0, 2),
)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    begun=st.lists(st.sampled_from([1, 450, 550, 900]), min_size=1, max_size=3),
    deeds=st.lists(DEEDS, min_size=2, max_size=5),
    order=st.lists(st.integers(0, 4), max_size=40),
)
def test_several_at_once_in_any_order(
    valkey_url: str, begun: list[int], deeds: list[Deed], order: list[int]
) -> None:
    turns = iter(order)

    async def once() -> None:
        store = Store(valkey_url, secrets=SECRETS)
        await play(store, begun, deeds, lambda width: next(turns, 0) % width)
        await store.close()

    asyncio.run(once())


# In no interleaving of decisions is a repeated call approved unseen.


REFUND = "process_refund: {tier: approve"


def counting(what: str) -> Policy:
    """Return a policy that raises refunds by a number of earlier ones."""
    rule = f"raise: [{{to: escalate, when: recent.{what}, because: again}}]"
    return load_policy(POLICY.replace(REFUND, f"{REFUND}, {rule}"), "policy.yml")


LOOK_UP = """
  look_up_once:
    tier: auto
    raise: [{to: approve, when: recent.same_done_24h > 0, because: again}]
"""
ONCE = load_policy(
    POLICY.replace(REFUND, f"{REFUND}, same_by: args.amount") + LOOK_UP, "policy.yml"
)
COUNTED = counting("same_done_24h > 0")
REJECTED_COUNT = counting("same_rejected_24h > 3")
ROUNDS = size(deep=40, short=8)
MANY = size(deep=400, short=60)
AT_ONCE = 6
KILLS = size(deep=10, short=2)


async def waiting(
    harness: ServiceHarness, count: int, *, amount: int | None = None
) -> list[str]:
    """Ask for the same refund in several threads; return the items."""
    args: JsonObject = {"amount": next(_number) if amount is None else amount}
    found = [
        await harness.submit(("process_refund", args), thread=f"t{next(_number)}")
        for _ in range(count)
    ]
    return [verdicts[0].item_id for _, verdicts in found]


async def test_two_same_calls_are_not_both_approved_at_once(store: Store) -> None:
    harness = ServiceHarness(store, ONCE)
    orders = 0
    for choose in every_order():
        assert await approve_at_once(harness, choose) == ["decided", "repeated"]
        orders += 1
    assert orders >= 10


async def test_a_rule_counts_the_first_of_two_same_calls(store: Store) -> None:
    harness = ServiceHarness(store, COUNTED)

    for choose in every_order():
        assert await approve_at_once(harness, choose) == ["decided", "voted"]


@pytest.mark.parametrize("rule", [REJECTED_COUNT, COUNTED], ids=["none", "all"])
async def test_a_counted_crowd_is_decided_in_order(store: Store, rule: Policy) -> None:
    """Each decision changes what the rule reads of all others."""
    harness = ServiceHarness(store, rule)
    clicks = [await harness.click_on(item) for item in await waiting(harness, MANY)]

    outcomes = await asyncio.gather(
        *(harness.reviews.decide(click, Approve(), ANA) for click in clicks)
    )

    kinds = Counter(one.kind for one in outcomes)
    alone = MANY if rule is REJECTED_COUNT else 1
    assert kinds["decided"] == alone
    assert kinds["voted"] == MANY - alone


async def approve_at_once(harness: ServiceHarness, choose: Choose) -> list[str]:
    """Approve the same call twice at once, as two people; return the outcomes."""
    clicks = [await harness.click_on(item) for item in await waiting(harness, 2)]
    with pytest.MonkeyPatch.context() as patch:
        outcomes = await Interleaver(harness.store.conn, patch).run(
            [
                harness.reviews.decide(click, Approve(), by)
                for click, by in zip(clicks, (ANA, BEN), strict=True)
            ],
            choose,
        )
    return sorted(one.kind for one in outcomes if isinstance(one, Outcome))


async def test_one_of_many_same_calls_runs_unasked(store: Store) -> None:
    harness = ServiceHarness(store, ONCE)
    for n in range(ROUNDS):
        answers = await asyncio.gather(
            *(
                harness.submit(("look_up_once", {"order": n}), thread=f"t{n} {place}")
                for place in range(AT_ONCE)
            )
        )

        tiers = [verdicts[0].tier for _, verdicts in answers]
        assert tiers.count(Tier.AUTO) == 1
        assert tiers.count(Tier.APPROVE) == AT_ONCE - 1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_killed_store_keeps_precedents(tmp_path: Path) -> None:
    folder = tmp_path / "valkey"
    items: list[str] = []
    for _ in range(KILLS):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            items += await decide_until_killed(store, engine)
            await store.close()

    with EmbeddedEngine(folder) as engine:
        store = Store(engine.url, secrets=SECRETS)
        harness = ServiceHarness(store, ONCE)
        keys, fold = store.keys_of_tenant("default"), PrecedentFold()
        effects: set[str] = set()
        for item in [await harness.item(one) for one in items]:
            effect = effect_of(ONCE, agent="support", tool=item.tool, args=item.args)
            fold.opened(item.id, effect)
            effects.add(effect)
        log = await audit_entries(store.conn, keys)
        for event in log:
            fold.record(event.name, event.item, at_ms=event.at_ms, reason=event.reason)
        kept = {
            effect: read(
                store.conn, key, fields(await store.conn.command("HGETALL", key))
            )
            for effect in effects
            for key in [keys.precedents(effect)]
        }
        await store.close()

    assert [one for one in log if one.name is EventName.ITEM_AUTHORIZED]
    for effect in effects:
        told = {call: one.at_ms for call, one in fold.precedents(effect).items()}
        # The log contains decisions; a pending call is a precedent without one.
        known = [
            one for one in kept[effect].precedents if one.state is not ItemState.PENDING
        ]
        assert {one.call: one.at_ms for one in known} == told


async def decide_until_killed(store: Store, engine: EmbeddedEngine) -> list[str]:
    """Approve calls side by side, and kill the store after some of them."""
    harness = ServiceHarness(store, ONCE)
    items = [one for n in range(20) for one in await waiting(harness, 3, amount=n)]
    decided = 0

    async def decide(item: str) -> None:
        nonlocal decided
        try:
            await harness.decide(item, Approve())
        except StoreUnavailable:
            return
        decided += 1
        if decided == len(items) // 2:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)

    await asyncio.gather(*(decide(item) for item in items))
    return items
