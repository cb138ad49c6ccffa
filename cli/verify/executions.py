"""Guarantees about executions: claims, freezes, receipts and API keys."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from keyturn.cli.verify.guarantee import Broken, expect, expect_is, guarantee
from keyturn.cli.verify.scratch import AMOUNT, OTHER, PAYEE, RACERS, Call, Scratch
from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol import receipts
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.trust.key_folder import Role
from keyturn.receipts import SqliteLedger, Verifier

CLAIMS, RECEIPTS = "Executions", "Receipts and API keys"


async def _claimed(call: Call) -> Claimed:
    reply = await call.claim()
    if isinstance(reply, Claimed):
        return reply
    raise Broken(f"An approved call was not granted: {reply.kind}.")


@guarantee(CLAIMS)
async def exactly_the_card(scratch: Scratch) -> None:
    """A call runs with exactly the arguments that the reviewer approved or wrote."""
    call = await scratch.ask()
    await call.decide(Edit(args={"amount": 60}))
    args = json.loads((await _claimed(call)).action)["args"]
    expect(args == {"amount": 60}, f"It would run with {args}.")


@guarantee(CLAIMS)
async def before_a_decision(scratch: Scratch) -> None:
    """A call cannot be claimed before people decided it."""
    expect_is(await (await scratch.ask()).claim(), Refused)


@guarantee(CLAIMS)
async def claimed_once(scratch: Scratch) -> None:
    """Eight claims at the same time over separate connections grant one execution."""
    call = await scratch.approved()
    claims = (call.claim(scratch.side(), owner=f"worker{n}") for n in range(RACERS))
    granted = [isinstance(one, Claimed) for one in await asyncio.gather(*claims)]
    expect(sum(granted) == 1, f"{sum(granted)} workers may run the call.")


@guarantee(CLAIMS)
async def restart(scratch: Scratch) -> None:
    """A restart between decision and claim loses nothing and repeats nothing."""
    call = await scratch.approved()
    expect_is(await call.claim(scratch.side()), Claimed)
    again = await call.claim(scratch.side(), owner="another")
    expect(not isinstance(again, Claimed), "It was granted twice.")


@guarantee(CLAIMS)
async def another_call(scratch: Scratch) -> None:
    """An approval does not cover a call in another message of the agent."""
    call = await scratch.approved()
    other = call.request.ref.with_(message_id="m2")
    expect_is(await call.claim(ref=other), Refused)


@guarantee(CLAIMS)
async def other_tenant(scratch: Scratch) -> None:
    """Another tenant cannot claim a call."""
    call = await scratch.approved()
    expect_is(await call.claim(scratch.side(OTHER)), Refused)


@guarantee(CLAIMS)
async def after_expiry(scratch: Scratch) -> None:
    """An approval that is too old runs nothing."""
    call = await scratch.approved("pay_soon")
    await scratch.after((await call.approval()).items[0].lapses_at_ms)
    expect_is(await call.claim(), Refused)


@guarantee(CLAIMS)
async def after_withdrawal(scratch: Scratch) -> None:
    """An approved call that was withdrawn does not run."""
    call = await scratch.approved()
    await scratch.main.agents.withdraw_items(frozenset({call.request.item_id}))
    expect_is(await call.claim(), Refused)


@guarantee(CLAIMS)
async def attempt_used_twice(scratch: Scratch) -> None:
    """A ledger outside of the store refuses a second run from an older record."""
    call, first, second = await scratch.approved(), scratch.side(), scratch.side()
    older = await call.copied()
    async with ledger_of(first.store, f"{scratch.folder}/spent.db") as ledger:
        second.store.conn.ledger = ledger
        expect_is(await call.claim(first), Claimed)
        await call.put_back(older)
        # A process that has just started knows no newer record.
        reply = await call.claim(second, owner="another")
    expect(not isinstance(reply, Claimed), "The older record was granted again.")


@guarantee(CLAIMS)
async def frozen(scratch: Scratch) -> None:
    """While its tool, its agent or everything is frozen, no approved call runs."""
    call, freezes = await scratch.approved(), scratch.side().reviews.freezes
    for scope in (
        FreezeScope(kind=ScopeKind.TOOL, name="pay"),
        FreezeScope(kind=ScopeKind.AGENT, name=call.request.ref.agent),
        FreezeScope(kind=ScopeKind.TENANT),
    ):
        await freezes.freeze(scope, "verify", "keyturn verify")
        reply = await call.claim()
        await freezes.unfreeze(scope, "verify")
        expect_is(reply, Refused)
    expect_is(await call.claim(), Claimed)


async def _refusal(
    scratch: Scratch, *, times: int = 1, amount: int = AMOUNT, audience: str = PAYEE
) -> str:
    """Use a new receipt at a tool; return why the tool refuses it, or nothing."""
    ledger = SqliteLedger(scratch.folder / "receipts.db")
    keys = scratch.keyring.verifying(Role.GATEWAY)
    verifier = Verifier(audience=audience, keys=keys, ledger=ledger)
    receipt = (await _claimed(await scratch.approved())).receipt
    try:
        for _ in range(times):
            verifier.verify(receipt, tool="pay", args={"amount": amount})
    except NotVerified as error:
        return error.reason
    return ""


@guarantee(RECEIPTS)
async def receipt_used_twice(scratch: Scratch) -> None:
    """A receipt authorizes one run: a second use is refused."""
    expect(not await _refusal(scratch), "A true receipt was refused.")
    expect(await _refusal(scratch, times=2) == "used", "It was accepted.")


@guarantee(RECEIPTS)
async def receipt_for_another_call(scratch: Scratch) -> None:
    """A receipt does not authorize other arguments."""
    expect(await _refusal(scratch, amount=1) == "call_differs", "It was accepted.")


@guarantee(RECEIPTS)
async def receipt_elsewhere(scratch: Scratch) -> None:
    """A receipt does not authorize a run at another service."""
    found = await _refusal(scratch, audience="other")
    expect(found == "audience_wrong", "It was accepted.")


@guarantee(RECEIPTS)
async def late_receipt(scratch: Scratch) -> None:
    """A receipt expires after fifteen minutes."""
    text = (await _claimed(await scratch.approved())).receipt
    keys = scratch.keyring.verifying(Role.GATEWAY)
    found, _ = receipts.read_receipt(text, keys)
    try:
        receipts.check_time(found, found.iat + 15 * 60 + receipts.SKEW_S)
    except NotVerified:
        return
    raise Broken("It was accepted.")


@guarantee(RECEIPTS)
async def key_of_another_agent(scratch: Scratch) -> None:
    """An API key works only for its agents, and only until it is revoked."""
    kept = ApiKeyStore(scratch.main.store, tenant=scratch.tenant)
    check, lives = ApiKeys(kept.seals, kept.find).check, timedelta(hours=1)
    made = await kept.create("verify", lives, name="verify", agents=["own"])
    found = await check(made.text)
    expect(found and found.may_be("own"), "A true key was refused.")
    expect(found and not found.may_be("other"), "It works for another agent.")
    await kept.revoke(made.kept.id, "verify")
    expect(not await check(made.text), "It works after its revocation.")
