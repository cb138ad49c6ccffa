"""In no interleaving of decisions is a repeated call approved unseen."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Approve, Outcome
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.evaluate import effect_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import PrecedentFold
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.limits.precedents import read
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.races.interleaver import Choose, Interleaver, every_order
from tests.service.harness import ANA, BEN, POLICY, ServiceHarness
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

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
_number = itertools.count()


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
