"""Whoever writes to the store has the bot change or answer none of its messages."""

from __future__ import annotations

from typing import cast

import pytest

from tests.bot.bot_stack import CHANNEL, TEAM, Stack, has_button
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually
from tests.service.harness import ANA
from twokey.bot.delivery.own_places import OwnPlaces
from twokey.bot.ids import Action
from twokey.gateway.approvals.decisions import Approve, Click, Decided
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.security import SecurityKind
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store
from twokey.sandbox.json_types import JsonObject

pytestmark = pytest.mark.usefixtures("brisk_posts")


async def approve(stack: Stack, verdict: Verdict) -> None:
    approval = await stack.approval(verdict)
    item = approval.items[0]
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=item.action_hash,
    )
    ana = ANA.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
    assert isinstance(await stack.reviews.decide(click, Approve(), ana), Decided)


async def shown(stack: Stack, ts: object) -> JsonObject:
    messages = await stack.actor("U0ANA").messages(CHANNEL)
    return next(one for one in messages if one["ts"] == ts)


async def unseal(store: Store, keys: Keys, approval: Approval) -> None:
    """Leave the place of a card as a version that makes no seals writes it."""
    name = keys.card(approval.id)
    assert await store.conn.command("HDEL", name, *await seals(store, name)) == 1


async def seals(store: Store, name: str) -> list[bytes]:
    """Return the fields of a card's hash that are seals."""
    found = cast("list[bytes]", await store.conn.command("HKEYS", name))
    return [one for one in found if one.startswith(b"~")]


def seen(store: Store) -> int:
    return store.security.counts[SecurityKind.SEAL_WRONG]


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_card_is_drawn_over_no_other_message(
    stack: Stack, *, is_copied: bool
) -> None:
    async with stack.running():
        mine, other = await stack.refund(), await stack.refund(thread="t2")
        await stack.card(mine)
        target = await stack.drawn(other)
        await stack.drawn(mine)
        before = await shown(stack, target.ts)
        conn, keys = stack.store.conn, stack.keys
        ids = [(await stack.approval(one)).id for one in (mine, other)]
        names = [keys.card(one) for one in ids]
        await conn.command("HSET", names[0], "at", f"{CHANNEL} {target.ts}")
        if is_copied:
            # With the seal of the other card.
            for field in await seals(stack.store, names[1]):
                await conn.command("HSET", names[0], field, "")

        await approve(stack, mine)

        async def is_posted_anew() -> bool:
            place = await stack.store.cards.place(keys, ids[0])
            return place is not None and place.is_sealed and place.rev > 1

        await eventually(is_posted_anew)
        await nothing_is_left(stack)

        assert await shown(stack, target.ts) == before
        assert not await stack.notes(before)
        assert has_button(await shown(stack, target.ts), Action.APPROVE)
        assert seen(stack.store) == 1


async def test_a_place_that_is_there_before_the_card_is_not_taken_for_it(
    stack: Stack,
) -> None:
    verdict = await stack.refund()
    async with stack.running():
        target = await stack.drawn(verdict)
    before = await shown(stack, target.ts)
    later = await stack.refund(thread="t2")
    name = stack.keys.card((await stack.approval(later)).id)
    await stack.store.conn.command("HSET", name, "at", f"{CHANNEL} {target.ts}")
    await stack.store.conn.command("PEXPIRE", name, 400 * 86_400_000)
    async with stack.running():
        place = await stack.drawn(later)

        assert place.ts != target.ts
        assert place.is_sealed
        assert await shown(stack, target.ts) == before


async def test_what_an_older_version_posted_is_changed_where_it_stands(
    stack: Stack,
) -> None:
    async with stack.running():
        verdict = await stack.refund()
        place = await stack.drawn(verdict)
        approval = await stack.approval(verdict)
        await unseal(stack.store, stack.keys, approval)

        await stack.actor("U0ANA").click(CHANNEL, place.ts, Action.APPROVE)
        after = await stack.drawn(verdict)

        assert (after.ts, after.is_sealed) == (place.ts, True)
        assert seen(stack.store) == 0


async def test_what_nobody_noted_is_posted_again(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        place = await stack.drawn(verdict)
        approval = await stack.approval(verdict)
        await unseal(stack.store, stack.keys, approval)
        await stack.store.conn.command("DEL", stack.keys.messages(approval.id))
        await approve(stack, verdict)
        after = await stack.drawn(verdict)

        assert after.ts != place.ts
        assert seen(stack.store) == 1


async def test_a_seal_of_before_another_secret_counts(store: Store) -> None:
    keys, card = store.keys_of_tenant("default"), f"ap_s0_{'a' * 32}"
    await store.cards.posted(keys, card, channel="C1", ts="1.0")
    store.conn.secrets = (b"new" * 16, *store.conn.secrets)
    place = await store.cards.place(keys, card)
    store.conn.secrets = store.conn.secrets[:1]
    forgotten = await store.cards.place(keys, card)

    assert place is not None
    assert forgotten is not None
    assert (place.is_sealed, forgotten.is_sealed) == (True, False)


async def test_an_outage_whose_place_nobody_registered_is_told_anew(
    stack: Stack,
) -> None:
    outage, at = f"run_s0_{'0' * 32}.{'0' * 8}", (CHANNEL, "1.2")
    card = stack.keys.card(outage)
    await stack.store.conn.command("HSET", card, "at", " ".join(at))
    await stack.store.conn.command("PEXPIRE", card, 60_000)
    posted, copies = stack.store.posted_messages, stack.store.copies
    own = OwnPlaces(stack.store.cards, copies, posted, stack.keys, "default")
    place = await stack.store.cards.place(stack.keys, outage)
    assert place

    assert await own.of(outage, place) is None

    assert await stack.store.cards.place(stack.keys, outage) is None
    assert await stack.store.cards.outdated(stack.keys, "default", 9) == []
    assert seen(stack.store) == 1
