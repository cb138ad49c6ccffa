"""A reviewer delegates their queue, and the card shows who decided for whom."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import COMMAND, Action
from keyturn.gateway.policy.load import load_policy
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, says

# Ben is in the group of the others' policy; here only Ana may decide.
ANA_ONLY = load_policy(
    POLICY.replace("{usergroups: [S0SUPPORT], users: [U0DAN]}", "{users: [U0ANA]}"),
    "policy.yml",
)


async def delegate(stack: Stack, words: str, answer: str, user: str = "U0ANA") -> None:
    await stack.actor(user).command(COMMAND, f"delegate {words}", CHANNEL)
    await stack.told(user, answer)


async def test_a_colleague_decides_and_the_card_says_for_whom(stack: Stack) -> None:
    stack.policy = ANA_ONLY
    async with stack.running():
        verdict = await stack.refund()
        card, ben = await stack.card(verdict), stack.actor("U0BEN")
        await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.told("U0BEN", "Please ask one of them")
        await delegate(stack, "@ben 4h", "may decide in your place until")

        await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)

        card = await stack.card(verdict, says("Approved"))
        assert "<@U0BEN> for <@U0ANA>" in str(card["blocks"])
        vote = (await stack.approval(verdict)).items[0].votes[0]
        assert (vote.by.user, vote.on_behalf_of[0].user) == ("U0BEN", "U0ANA")


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
async def test_a_bad_delegation_is_told(stack: Stack, words: str, answer: str) -> None:
    async with stack.running():
        await delegate(stack, words, answer)

        assert await stack.store.delegations.all(stack.keys) == ()
