"""Decisions of the past: by command and on the Home tab, with a search."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.listeners.test_review_together import home, text_of, waiting


async def approved(stack: Stack, count: int) -> list[Verdict]:
    """Approve this many refunds as Ana, one after the other."""
    verdicts = await waiting(stack, count)
    for verdict in verdicts:
        card = await stack.card(verdict)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
    return verdicts


async def answered(stack: Stack, user: str, text: str, channel: str = CHANNEL) -> str:
    """Type a command, and return its answer."""
    person = stack.actor(user)
    before = len(await person.ephemerals(channel))
    await person.command("/approvals", text, channel)
    await person.wait_for(lambda _: True)
    found = await person.ephemerals(channel)
    assert len(found) == before + 1
    return text_of(found[-1])


async def test_history_names_who_decided_what_and_is_searched(stack: Stack) -> None:
    async with stack.running():
        await approved(stack, 2)

        everything = await answered(stack, "U0BEN", "history")
        one = await answered(stack, "U0BEN", "history REFUND 78201")
        none = await answered(stack, "U0BEN", "history 99999")

    assert everything.count("approved by <@U0ANA>") == 2
    assert everything.index("78201") < everything.index("78200"), "newest first"
    assert "78201" in one
    assert "78200" not in one
    assert "No decision was found that you may read" in none


async def test_mine_lists_what_a_person_decided_and_nobody_elses(stack: Stack) -> None:
    async with stack.running():
        await approved(stack, 1)

        by_ana = await answered(stack, "U0ANA", "mine")
        by_ben = await answered(stack, "U0BEN", "mine")

    assert "approved by <@U0ANA>" in by_ana
    assert "No decision was found that you may read" in by_ben


async def test_an_unreadable_approval_has_no_history(stack: Stack) -> None:
    async with stack.running():
        await approved(stack, 1)
        chloe = await home(stack, "U0CHLOE", shows="Waiting for you: 0")

        await chloe.act_in_home(Action.PAST)

        view = text_of(await chloe.wait_for_view())
        assert "No decision was found that you may read" in view
        assert "78200" not in view


async def test_the_home_tab_searches_a_persons_decisions(stack: Stack) -> None:
    async with stack.running():
        await approved(stack, 2)
        ana = await home(stack, shows="Waiting for you: 0")

        await ana.act_in_home(Action.PAST_MINE)
        view = await ana.wait_for_view(lambda v: v["callback_id"] == View.PAST_MINE)
        assert await ana.submit({Input.SEARCH: "78201"}) == {}
        found = text_of(await ana.wait_for_view())

        assert text_of(view).count("approved by <@U0ANA>") == 2
        assert found.count("approved by <@U0ANA>") == 1


async def test_a_search_finds_nothing_that_the_policy_hides(stack: Stack) -> None:
    described = "    description: "
    hiding = POLICY.replace(described, f"    redact: [args.note]\n{described}", 1)
    stack.policy = load_policy(hiding, "policy.yml")
    async with stack.running():
        card = await stack.card(await stack.refund(note="for Hannelore"))
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        hidden = await answered(stack, "U0ANA", "history Hannelore")
        shown = await answered(stack, "U0ANA", "history 78291")

    assert "No decision" in hidden
    assert "78291" in shown


async def test_the_numbers_of_the_week_are_shown_to_a_member(stack: Stack) -> None:
    async with stack.running():
        nothing = await answered(stack, "U0ANA", "stats")
        await approved(stack, 2)
        numbers = await answered(stack, "U0ANA", "stats")

    assert "No agent asked for a call in the last 7 days" in nothing
    assert "0 of 2 calls ran without a person" in numbers
    assert "process_refund" in numbers
