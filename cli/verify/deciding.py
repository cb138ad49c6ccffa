"""Guarantees about decisions: who decides, when, and on which version of a call."""

from __future__ import annotations

import asyncio

from keyturn.bot.ids import Action, seal, unseal, verify
from keyturn.bot.ingress import StoreNonces
from keyturn.cli.verify.guarantee import expect, expect_is, guarantee
from keyturn.cli.verify.scratch import (
    ANA,
    BEN,
    CHLOE,
    RACERS,
    Call,
    Scratch,
    Side,
    person,
)
from keyturn.gateway.approvals import decisions
from keyturn.gateway.approvals.decisions import AccountKind, Edit
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Refused
from keyturn.gateway.service.run.sweep import Sweeper

PEOPLE, CLICKS, EDITS = "Who decides", "Clicks", "Policy and edits"

_KEY = bytes(32)


async def _cannot_approve(scratch: Scratch, by: decisions.Reviewer) -> None:
    call = await scratch.ask(by=ANA.person)
    expect_is(await call.decide(by=by), decisions.Forbidden)
    expect_is(await call.decide(by=BEN), decisions.Decided)


@guarantee(PEOPLE)
async def requester(scratch: Scratch) -> None:
    """The requester of a call cannot approve it."""
    await _cannot_approve(scratch, ANA)


@guarantee(PEOPLE)
async def no_role(scratch: Scratch) -> None:
    """A member of the workspace without a listed role cannot approve."""
    await _cannot_approve(scratch, person("U0EVE"))


@guarantee(PEOPLE)
async def no_member(scratch: Scratch) -> None:
    """Guests, bots, strangers and unknown accounts cannot approve, with any role."""
    for kind in set(AccountKind) - {AccountKind.MEMBER}:
        await _cannot_approve(scratch, BEN.with_(account=kind))


@guarantee(PEOPLE)
async def one_person_twice(scratch: Scratch) -> None:
    """One person who approves twice does not count as two people."""
    call = await scratch.ask("wire")
    expect_is(await call.decide(by=CHLOE), decisions.Voted)
    expect_is(await call.decide(by=CHLOE), decisions.Forbidden)
    expect_is(await call.decide(by=ANA), decisions.Decided)


@guarantee(CLICKS)
async def borrowed_button(scratch: Scratch) -> None:
    """A button works for no other card, and in no other workspace."""
    call, other = await scratch.ask(), await scratch.ask()
    card, action = await call.approval(), Action.APPROVE
    button = seal(card, 0, key=_KEY, team="T0", purpose=action)
    for of, team, works in (
        (call, "T0", True),
        (other, "T0", False),
        (call, "T1", False),
    ):
        sealed, seen = unseal(button.replace(call.id, of.id)), await of.approval()
        found = verify(sealed, seen, key=_KEY, team=team, purpose=action)
        expect(found is works, f"It works: {found}.")


@guarantee(CLICKS)
async def old_version(scratch: Scratch) -> None:
    """A click on the card before an edit does not approve the edited call."""
    call = await scratch.ask("pay_edited")
    before = await call.click()
    expect_is(await call.decide(Edit(args={"amount": 60})), decisions.Voted)
    expect_is(await call.decide(by=BEN, click=before), decisions.Changed)


@guarantee(CLICKS)
async def late_click(scratch: Scratch) -> None:
    """A click after the deadline decides nothing; the store's clock counts."""
    call = await scratch.ask("pay_soon")
    await scratch.after((await call.approval()).expires_at_ms)
    expect_is(await call.decide(), decisions.Expired)


@guarantee(CLICKS)
async def silence(scratch: Scratch) -> None:
    """Silence approves nothing: a call without a decision expires."""
    call = await scratch.ask("pay_soon")
    await scratch.after((await call.approval()).expires_at_ms)
    await Sweeper(scratch.main.store, tenant=scratch.tenant).sweep()
    state = (await call.approval()).items[0].state
    expect(state is ItemState.EXPIRED, f"The call is {state}.")


@guarantee(CLICKS)
async def replayed_request(scratch: Scratch) -> None:
    """A signed request counts once, also in another process."""
    for is_new in (True, False):
        nonces = StoreNonces(scratch.side().store, scratch.tenant)
        expect(await nonces.is_first("sha256:7") is is_new, "It does not count once.")


async def _one_decision(call: Call, sides: list[Side]) -> None:
    click, store = await call.click(), call.scratch.main.store
    clicks = (call.decide(click=click, side=side) for side in sides)
    kinds = [one.kind for one in await asyncio.gather(*clicks)]
    expect(kinds.count("decided") == 1, f"The outcomes are {', '.join(kinds)}.")
    log = store.audit(call.scratch.keys).entries()
    names = [one.name async for one in log if one.approval == call.id]
    expect(names.count(EventName.ITEM_AUTHORIZED) == 1, f"The log has {names}.")


@guarantee(CLICKS)
async def double_click(scratch: Scratch) -> None:
    """Eight clicks at the same time in one process are one decision."""
    await _one_decision(await scratch.ask(), [scratch.main] * RACERS)


@guarantee(CLICKS)
async def double_click_elsewhere(scratch: Scratch) -> None:
    """Eight clicks at the same time over separate connections are one decision."""
    sides = [scratch.side() for _ in range(RACERS)]
    await _one_decision(await scratch.ask(), sides)


@guarantee(EDITS)
async def denied_tool(scratch: Scratch) -> None:
    """A call of tier deny is refused without a card."""
    call = await scratch.ask("wipe")
    expect(not call.id, "A card was opened.")
    expect_is(await call.claim(), Refused)


@guarantee(EDITS)
async def edit_that_raises(scratch: Scratch) -> None:
    """An edit above a limit needs the people of the higher tier."""
    call = await scratch.ask()
    expect_is(await call.decide(Edit(args={"amount": 2000})), decisions.Voted)
    expect_is(await call.claim(), Refused)


@guarantee(EDITS)
async def edit_outside_schema(scratch: Scratch) -> None:
    """An edit that does not fit the tool's schema is refused."""
    call = await scratch.ask()
    expect_is(await call.decide(Edit(args={"amount": 0})), decisions.Invalid)


@guarantee(EDITS)
async def own_edit(scratch: Scratch) -> None:
    """Where the policy says so, an editor cannot approve the edit."""
    call = await scratch.ask("pay_edited")
    expect_is(await call.decide(Edit(args={"amount": 60})), decisions.Voted)
    expect_is(await call.decide(by=ANA), decisions.Forbidden)
    expect_is(await call.decide(by=BEN), decisions.Decided)
