"""People decide a call of another program, and have it ask again when it refused."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState, NotTaken
from keyturn.gateway.protocol.wire import (
    AskedAgain,
    HandOverEnd,
    ReportedOutcome,
    Verdict,
    VerdictKind,
)
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, has_button, says

NAME = "Agent Server crm"


async def asked(stack: Stack) -> Verdict:
    (verdict,) = await stack.submit(("process_refund", {**REFUND}), handed_to=NAME)
    return verdict


async def approved(stack: Stack) -> Verdict:
    verdict = await asked(stack)
    card = await stack.card(verdict, lambda m: has_button(m, Action.APPROVE))
    assert "cannot see what runs" in json.dumps(card["blocks"])
    await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
    await stack.card(verdict, says(f"Waiting to be handed to *{NAME}*"))
    return verdict


async def handed(
    stack: Stack, verdict: Verdict, problem: NotTaken = "", detail: str = ""
) -> None:
    """Hand a decision over, as a connector."""
    item_id, fence = await stack.begin(verdict)
    end = HandOverEnd(
        item_id=item_id,
        fence=fence,
        taken=not problem,
        problem=problem,
        detail=detail,
    )
    assert await stack.agents.hand_over(end)


async def test_the_card_names_the_program_and_its_report(live: Stack) -> None:
    verdict = await approved(live)
    await handed(live, verdict)
    card = await live.card(verdict, says(f"to *{NAME}*, which runs it by itself."))
    await live.note(card, "Handed")
    report = ReportedOutcome(item_id=verdict.item_id, ok=True, summary="paid")

    assert await live.agents.report_outcome(report)

    await live.card(verdict, says(f"to *{NAME}*, which reports that it ran."))
    await live.note(card, f"*{NAME}* reports: it ran.")


async def test_an_agent_that_refused_the_answer_asks_again(live: Stack) -> None:
    verdict = await approved(live)
    await handed(live, verdict, "refused", "KeyError: <!channel> *type*")
    card = await live.card(verdict, lambda m: has_button(m, Action.ASK_AGAIN))
    ts = str(card["ts"])

    await live.actor("U0EVE").click(CHANNEL, ts, Action.ASK_AGAIN)
    await live.told("U0EVE", "can decide")
    await live.actor("U0ANA").click(CHANNEL, ts, Action.ASK_AGAIN)

    await live.told("U0ANA", "on a new card")
    after = await live.card(verdict, says("<@U0ANA> wants the agent to ask again"))
    assert not has_button(after, Action.ASK_AGAIN)
    item = await live.item(verdict)
    assert item.is_to_be_asked_again
    report = AskedAgain(item_id=item.id, ok=False, detail="no such thread")
    assert await live.agents.report_asked_again(report)
    await live.card(verdict, lambda m: has_button(m, Action.ASK_AGAIN))
    await live.note(card, "did not ask again")
    assert item.state is ItemState.NOT_TAKEN


@pytest.mark.parametrize(
    ("tool", "count", "chosen"),
    [
        ("process_refund", 2, None),
        ("process_refund", 8, "#2"),
        ("post_notice", 1, None),
    ],
    ids=["batch", "table", "notification"],
)
async def test_every_kind_of_card_has_the_agent_ask_again(
    stack: Stack, tool: str, count: int, chosen: str | None
) -> None:
    calls = [(tool, {**REFUND, "amount": n}) for n in range(count)]
    async with stack.running():
        verdicts = await stack.submit(*calls, handed_to=NAME)
        ana, first = stack.actor("U0ANA"), verdicts[0]
        ts = str((await stack.card(first))["ts"])
        if first.kind is VerdictKind.HOLD:
            await ana.click(CHANNEL, ts, Action.APPROVE_ALL)
            await stack.card(first, lambda m: not has_button(m, Action.APPROVE_ALL))
        refused = verdicts[:2] if chosen else verdicts[-1:]
        for one in refused:
            await handed(stack, one, "refused")
        await stack.drawn(first)

        await ana.click(CHANNEL, ts, Action.ASK_AGAIN, chosen=chosen)

        await stack.card(first, says("<@U0ANA> wants the agent to ask again"))
        items = (await stack.approval(first)).items
        assert [it.id for it in items if it.is_to_be_asked_again] == [
            refused[-1].item_id
        ]
