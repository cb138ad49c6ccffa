"""A decision without the bot's signature does not run, with any access to the store."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import (
    Decided,
    Decision,
    Edit,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import Cover, Use
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import Finding, ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, Refused, VerdictKind
from keyturn.gateway.service.run.proving import NOT_PROVEN
from keyturn.gateway.trust.key_folder import SigningKey
from tests.service.decided_calls import (
    claimed,
    decided,
    forge,
    two_of_two,
)
from tests.service.harness import (
    ANA,
    ServiceHarness,
    claim_of,
)
from tests.service.standing import allowed, allowing_policy, refund

OTHER = SigningKey.from_seed("keyturn/bot", bytes(range(32)))


Forgery = Callable[[Approval, Item], tuple[Approval, Item]]


def _of_item(**changes: Any) -> Forgery:
    return lambda approval, item: (approval, item.with_(**changes))


def _of_vote(**changes: Any) -> Forgery:
    def forged(approval: Approval, item: Item) -> tuple[Approval, Item]:
        vote = item.votes[0].with_(**changes)
        return approval, item.with_(votes=(vote, *item.votes[1:]))

    return forged


def _of_signature(**changes: Any) -> Forgery:
    def forged(approval: Approval, item: Item) -> tuple[Approval, Item]:
        vote = item.votes[0]
        assert vote.signed
        vote = vote.with_(signed=vote.signed.with_(**changes))
        return approval, item.with_(votes=(vote, *item.votes[1:]))

    return forged


def _resigned(approval: Approval, item: Item) -> tuple[Approval, Item]:
    """Sign a vote with a key of one's own that has the id of the bot's."""
    vote = item.votes[0]
    assert vote.signed
    sig = OTHER.sign(b"keyturn/v1/decision\x00")
    forged = vote.signed.with_(sig=base64.b64encode(sig).decode())
    return approval, item.with_(votes=(vote.with_(signed=forged), *item.votes[1:]))


def _opened(state: ItemState, item: Item, **changes: Any) -> Item:
    """Return a call that seems to run, or that seems to be allowed to."""
    later = item.changed_at_ms + 10**9
    return item.with_(
        state=state,
        owner="worker-1",
        fence=1 if state is ItemState.EXECUTING else item.fence,
        lapses_at_ms=later,
        claimed_until_ms=later if state is ItemState.EXECUTING else 0,
        **changes,
    )


EVE = Person(team="T0", user="U0EVE", name="Eve")
CHL = Person(team="T0", user="U0CHLOE", name="Chloe")

FORGERIES: dict[str, Forgery] = {
    "no votes": _of_item(votes=()),
    "a vote less": lambda a, item: (a, item.with_(votes=item.votes[:1])),
    "a vote twice": lambda a, item: (a, item.with_(votes=item.votes[:1] * 2)),
    "an unsigned vote": _of_vote(signed=None),
    "another person's vote": _of_vote(by=EVE),
    "one person's vote twice": _of_vote(by=CHL),
    "for somebody else": _of_vote(on_behalf_of=(EVE,)),
    "at another time": _of_vote(at_ms=1),
    "with another reason": _of_vote(reason="as agreed"),
    "another verb": _of_signature(verb=Verb.EDIT),
    "a verb that approves nothing": _of_signature(verb=Verb.REJECT),
    "no verb": _of_signature(verb=None),
    "another version": _of_signature(version=7),
    "another call was seen": _of_signature(seen="sha256:" + "0" * 64),
    "other roles were held": _of_signature(roles=("support", "senior")),
    "another request": _of_signature(request="sha256:" + "0" * 64),
    "another card": _of_signature(display="sha256:" + "0" * 64),
    "another policy": _of_signature(policy="sha256:" + "0" * 64),
    "no signature": _of_signature(sig=""),
    "no base64": _of_signature(sig="%"),
    "a signature of zeros": _of_signature(sig="A" * 86 + "=="),
    "signed by somebody else": _resigned,
    "the requester among them": lambda approval, item: (
        approval.with_(principals=(*approval.principals, CHL)),
        item,
    ),
    "a changed call": _of_item(principals=(CHL,)),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
async def test_what_the_bot_did_not_sign_does_not_run(
    harness: ServiceHarness, forgery: Forgery
) -> None:
    claim = await two_of_two(harness)

    await forge(harness, claim.item_id, forgery)
    refused = await harness.agents.claim(claim)

    assert refused == Refused(reason=NOT_PROVEN, state=ItemState.AUTHORIZED)
    # Its record is quarantined: it is not read, and no call of it runs any more.
    with pytest.raises(CorruptRecord):
        await harness.item(claim.item_id)
    assert isinstance(await harness.agents.claim(claim), Refused)


@pytest.mark.parametrize("state", [ItemState.AUTHORIZED, ItemState.EXECUTING])
@pytest.mark.parametrize(
    "decision", [None, Reject(), Respond(message="no")], ids=["none", "no", "answer"]
)
async def test_a_call_that_nobody_approved_is_not_made_one_that_runs(
    harness: ServiceHarness, decision: Decision | None, state: ItemState
) -> None:
    click, claim = await harness.refund()
    if decision is not None:
        assert isinstance(await harness.reviews.decide(click, decision, ANA), Decided)

    await forge(harness, claim.item_id, lambda a, item: (a, _opened(state, item)))

    assert await harness.agents.claim(claim) == Refused(reason=NOT_PROVEN, state=state)
    # An ended call that runs has keys without an expiry.
    await harness.command("FLUSHALL")


async def test_votes_of_another_call_authorize_nothing(harness: ServiceHarness) -> None:
    one, other = await two_of_two(harness), await decided(harness, tool="wire_money")
    votes = (await harness.item(one.item_id)).votes

    def moved(approval: Approval, item: Item) -> tuple[Approval, Item]:
        mine = tuple(vote.with_(action_hash=item.action_hash) for vote in votes)
        return approval, _opened(ItemState.AUTHORIZED, item, votes=mine)

    await forge(harness, other.item_id, moved)

    assert isinstance(await harness.agents.claim(other), Refused)


async def test_an_edit_that_nobody_made_does_not_run(harness: ServiceHarness) -> None:
    claim = await decided(harness, Edit(args={"amount": 60}))

    def signed_otherwise(approval: Approval, item: Item) -> tuple[Approval, Item]:
        assert item.edit
        return approval, item.with_(edit=item.edit.with_(by=EVE, reason="x"))

    await forge(harness, claim.item_id, signed_otherwise)

    assert isinstance(await harness.agents.claim(claim), Refused)


async def test_a_rerun_takes_those_who_let_it_run_again(
    harness: ServiceHarness,
) -> None:
    claim = await decided(harness)
    await claimed(harness, claim)
    await harness.doubt(claim.item_id)

    def rerun(approval: Approval, item: Item) -> tuple[Approval, Item]:
        assert item.state is ItemState.IN_DOUBT
        found = {"finding": Finding.RERUN, "reconciled_fence": item.fence}
        return approval, _opened(ItemState.AUTHORIZED, item, **found)

    await forge(harness, claim.item_id, rerun)

    assert isinstance(await harness.agents.claim(claim), Refused)


@pytest.mark.parametrize("state", [ItemState.AUTHORIZED, ItemState.EXECUTING])
@pytest.mark.parametrize("tier", [Tier.NOTIFY, Tier.AUTO])
async def test_a_call_that_needs_people_is_not_made_one_that_the_policy_let_run(
    harness: ServiceHarness, tier: Tier, state: ItemState
) -> None:
    _, claim = await harness.refund()

    await forge(
        harness, claim.item_id, lambda a, item: (a, _opened(state, item, tier=tier))
    )

    assert await harness.agents.claim(claim) == Refused(reason=NOT_PROVEN, state=state)
    # A pending call that runs has keys without an expiry.
    await harness.command("FLUSHALL")


async def test_a_record_of_an_older_policy_does_not_make_it_one_either(
    harness: ServiceHarness,
) -> None:
    _, claim = await harness.refund()

    def forged(approval: Approval, item: Item) -> tuple[Approval, Item]:
        old = approval.with_(policy_digest="sha256:" + "0" * 64)
        return old, _opened(ItemState.EXECUTING, item, tier=Tier.NOTIFY)

    await forge(harness, claim.item_id, forged)

    assert not isinstance(await harness.agents.claim(claim), Claimed)
    await harness.command("FLUSHALL")


COVERED: dict[str, tuple[str, JsonObject, bool, Tier]] = {
    "another tool": ("send_email", refund(30, "o2")[1], True, Tier.APPROVE),
    "other arguments": (*refund(30, "o2", customer="c2"), True, Tier.APPROVE),
    "a larger amount": (*refund(120, "o2"), True, Tier.APPROVE),
    "a raised call": (*refund(300, "o2"), True, Tier.ESCALATE),
    "never used for it": (*refund(30, "o2"), False, Tier.APPROVE),
}


@pytest.mark.parametrize("state", [ItemState.AUTHORIZED, ItemState.EXECUTING])
@pytest.mark.parametrize(
    ("tool", "args", "is_used", "tier"), COVERED.values(), ids=COVERED
)
async def test_a_standing_approval_for_other_calls_lets_none_run(
    harness: ServiceHarness,
    tool: str,
    args: JsonObject,
    state: ItemState,
    *,
    is_used: bool,
    tier: Tier,
) -> None:
    harness.policy = allowing_policy()
    ref, (verdict,) = await harness.submit((tool, args))
    standing = await allowed(harness)
    assert verdict.kind is VerdictKind.HOLD
    cover = Cover(approval=standing.id, given_by=(ANA.person,), uses_left=9)

    def used_for_it(approval: Approval, item: Item) -> tuple[Approval, Item]:
        return approval.with_(uses=(Use(item=verdict.item_id),)), item

    if is_used:
        await forge(harness, f"{standing.id}.0", used_for_it)
    await forge(
        harness,
        verdict.item_id,
        lambda a, item: (a, _opened(state, item, cover=cover, tier=tier)),
    )

    claim = claim_of(ref, verdict)
    assert await harness.agents.claim(claim) == Refused(reason=NOT_PROVEN, state=state)
    await harness.command("FLUSHALL")
