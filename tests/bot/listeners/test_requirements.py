"""The required people by the policy, decided by signed clicks."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import COMMAND, Action, Input
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, says

RULES = """\
requirements:
  one_person: {of: [support, senior]}
  one_support: {of: [support]}
  one_senior: {of: [senior]}
"""
TOOLS = """
  credit:
    tier: approve
    needs: one_support
    raise: [{when: args.amount > 50, needs: one_senior, because: over 50}]
  refund_it:
    tier: approve
    args_schema: {properties: {amount: {type: number}}}
    needs: one_person
    raise: [{when: args.amount > 50, needs: one_senior, because: over 50}]
  explained: {tier: approve, requires_reason: [approve]}
"""


@pytest.fixture
def shop(live: Stack) -> Stack:
    live.put_policy(("requirements:\n", RULES), of=POLICY + TOOLS)
    return live


async def test_a_requester_withdraws_by_the_form_to_reject(shop: Stack) -> None:
    verdict = await shop.refund()

    dan = await shop.click(verdict, Action.REJECT, "U0DAN")
    await dan.wait_for_view()
    await dan.submit({Input.REASON: "No longer wanted."})

    await shop.card(verdict, says("*Withdrawn* by <@U0DAN>"))
    assert (await shop.item(verdict)).state is ItemState.WITHDRAWN


async def test_an_approval_asks_for_its_reason_and_keeps_it(shop: Stack) -> None:
    (verdict,) = await shop.submit(("explained", {"n": 1}))

    ana = await shop.click(verdict, Action.APPROVE)
    await ana.wait_for_view()
    assert (await shop.item(verdict)).state is ItemState.PENDING
    await ana.submit({Input.REASON: "Checked with the customer."})

    item = await shop.item(verdict)
    assert item.state is ItemState.AUTHORIZED
    assert item.votes[0].reason == "Checked with the customer."


@pytest.mark.parametrize(
    ("tool", "others", "after_senior"),
    # The editor of a refund has no role in its new requirement.
    [
        ("credit", "`support` or `senior`", ItemState.PENDING),
        ("refund_it", "`senior`", ItemState.AUTHORIZED),
    ],
)
async def test_an_edit_that_adds_people_is_warned_of_before_it_counts(
    shop: Stack, tool: str, others: str, after_senior: ItemState
) -> None:
    (verdict,) = await shop.submit((tool, {"amount": 40}))
    ana = await shop.click(verdict, Action.EDIT)
    await ana.wait_for_view()

    await ana.submit({"field:0": "60"})

    view = await ana.wait_for_view(lambda one: "This change needs" in str(one))
    assert f"another person of {others} to approve it" in str(view)
    assert (await shop.item(verdict)).state is ItemState.PENDING
    assert (await shop.item(verdict)).edit is None
    await ana.submit({"field:0": "60"})
    await shop.card(verdict, says(", by "))
    await shop.click(verdict, Action.APPROVE, "U0CHLOE")
    assert (await shop.item(verdict)).state is after_senior


# Ben is in the group of the others' policy; here only Ana may decide.
ANA_ONLY = load_policy(
    POLICY.replace("{usergroups: [S0SUPPORT], users: [U0DAN]}", "{users: [U0ANA]}"),
    "policy.yml",
)


async def delegate(stack: Stack, words: str, answer: str, user: str = "U0ANA") -> None:
    await stack.actor(user).command(COMMAND, f"delegate {words}", CHANNEL)
    await stack.told(user, answer)


async def test_a_colleague_decides_and_the_card_says_for_whom(live: Stack) -> None:
    live.policy = ANA_ONLY
    verdict = await live.refund()
    card, ben = await live.card(verdict), live.actor("U0BEN")
    await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)
    await live.told("U0BEN", "Please ask one of them")
    await delegate(live, "@ben 4h", "may decide in your place until")

    await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    card = await live.card(verdict, says("Approved"))
    assert "<@U0BEN> for <@U0ANA>" in str(card["blocks"])
    vote = (await live.item(verdict)).votes[0]
    assert (vote.by.user, vote.on_behalf_of[0].user) == ("U0BEN", "U0ANA")
    await delegate(live, "off", "Nobody decides in your place any more")
    for name in (EventName.DELEGATION_SET, EventName.DELEGATION_LIFTED):
        (entry,) = await live.audit(name)
        assert entry.data["gesture"] == Gesture.SLASH_COMMAND


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("", "Write `/approvals delegate"),
        ("@ben", "Write `/approvals delegate"),
        ("@ben for ever", "Write `/approvals delegate"),
        ("@ben soon", "is not a duration"),
        ("@ben 31d", "longer than 30 days"),
        ("@ana 4h", "you cannot delegate to yourself"),
        ("@guest 4h", "Only members of this workspace can decide in your place"),
        ("@gone 4h", "Only members of this workspace can decide in your place"),
        ("@keyturn 4h", "Only members of this workspace can decide in your place"),
    ],
)
async def test_a_bad_delegation_is_told(live: Stack, words: str, answer: str) -> None:
    await delegate(live, words, answer)

    assert await live.store.delegations.all(live.keys) == ()
