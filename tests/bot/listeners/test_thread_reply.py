"""A mention under a card is about that card; it never starts another run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyturn.bot.ids import Action, Input, seal
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from tests.bot.listeners.test_refusals import edit_by_somebody_else
from tests.bot.tampering import forged_row

WORDS = "Only half of it: <b> & *99*"


async def said_under(
    stack: Stack, verdict: Verdict, text: str, user: str
) -> JsonObject:
    """Write under a card; return the private answer."""
    card = await stack.card(verdict)
    await stack.actor(user).say(CHANNEL, text, str(card["ts"]))
    return await stack.actor(user).message_with(CHANNEL, lambda m: m["ephemeral"])


async def opened_form(stack: Stack, offer: JsonObject, action: Action) -> JsonObject:
    ana = stack.actor("U0ANA")
    await ana.click(CHANNEL, str(offer["ts"]), action)
    return await ana.wait_for_view()


def offered(message: JsonObject) -> list[str]:
    """Return the actions of every button on a message."""
    rows = [b for b in as_objects(message["blocks"]) if b["type"] == "actions"]
    return [e["action_id"] for row in rows for e in as_objects(row["elements"])]


@pytest.mark.parametrize(
    ("action", "block"),
    [
        (Action.RESPOND_WORDS, Input.MESSAGE),
        (Action.EDIT_WORDS, Input.REASON),
        (Action.REJECT_WORDS, Input.REASON),
    ],
)
async def test_a_form_opens_with_the_words_that_were_written_under_the_card(
    each_live: Stack, action: Action, block: Input
) -> None:
    live = each_live
    verdict = await live.refund()
    offer = await said_under(live, verdict, f"@keyturn {WORDS}", "U0ANA")
    assert offered(offer) == ["respond_words", "edit_words", "reject_words"]

    form = await opened_form(live, offer, action)

    (box,) = [b for b in as_objects(form["blocks"]) if b["block_id"] == block]
    assert box["element"]["initial_value"] == WORDS
    assert await live.store.queue(live.keys).depth() == 0


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("U0CHLOE", "Please ask one of them"),
        ("U0GUEST", "Guests cannot decide"),
    ],
)
async def test_who_may_not_decide_is_offered_nothing_and_asks_nothing(
    live: Stack, user: str, words: str
) -> None:
    verdict = await live.refund()

    answer = await said_under(live, verdict, "@keyturn refund another", user)

    assert (words in str(answer["text"]), offered(answer)) == (True, [])
    assert await live.store.queue(live.keys).depth() == 0


async def test_each_waiting_call_of_a_batch_has_its_own_buttons(live: Stack) -> None:
    calls: list[tuple[str, JsonObject]] = [
        ("send_email", {"to": name}) for name in "abcdefg"
    ]
    verdicts = await live.submit(*calls, ("no_edits", {"x": 1}))

    offer = await said_under(live, verdicts[0], "@keyturn not now", "U0ANA")
    assert len(offered(offer)) >= 3
    block = f"words:{_words_ts(offer)}:1"
    await live.actor("U0ANA").click(
        CHANNEL, str(offer["ts"]), Action.REJECT_WORDS, block
    )
    await live.actor("U0ANA").wait_for_view()
    await live.actor("U0ANA").submit()

    states = [item.state for item in (await live.approval(verdicts[0])).items]
    assert states[1] is ItemState.REJECTED
    assert set(states) - {states[1]} == {ItemState.PENDING}


async def test_words_for_a_changed_card_open_no_form(live: Stack) -> None:
    verdict = await live.refund()
    offer = await said_under(live, verdict, "@keyturn no", "U0ANA")
    await edit_by_somebody_else(live, verdict)

    await live.actor("U0ANA").click(CHANNEL, str(offer["ts"]), Action.REJECT_WORDS)

    await live.told("U0ANA", "edited and approved by")
    assert await live.actor("U0ANA").view() is None


@pytest.mark.parametrize("forged", ["block", "purpose", "user"])
async def test_a_button_opens_its_own_words(live: Stack, forged: str) -> None:
    verdict = await live.refund()
    offer = await said_under(live, verdict, "@keyturn no", "U0ANA")
    approval = await live.approval(verdict)
    key, ts = live.config.seal_key, _words_ts(offer)
    purpose = Action.REJECT if forged == "purpose" else Action.REJECT_WORDS
    value = seal(approval, 0, key=key, team=TEAM, purpose=purpose)
    block = "words:1.1:0" if forged == "block" else f"words:{ts}:0"
    user = "U0BEN" if forged == "user" else "U0ANA"
    workspace = live.sandbox.workspace
    message = workspace.ephemerals[str(offer["ts"])]
    row = forged_row(Action.REJECT_WORDS, value, block)
    workspace.put_message(replace(message, blocks=(row,), ephemeral_to=user))

    await live.actor(user).click(CHANNEL, message.ts, Action.REJECT_WORDS, block)

    said = "does not belong to this card" if forged == "purpose" else "not kept any"
    await live.told(user, said)
    assert await live.actor(user).view() is None
    assert (await live.item(verdict)).is_pending


def _words_ts(offer: JsonObject) -> str:
    block = next(b for b in as_objects(offer["blocks"]) if b["type"] == "actions")
    return str(block["block_id"]).split(":")[1]
