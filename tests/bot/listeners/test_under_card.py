"""A mention under a card is about that card; it never starts another run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bot.bot_house import CHANNEL, TEAM, House, says
from tests.bot.listeners.test_refusals import edit_by_somebody_else
from twokey.bot.ids import Action, Input, seal
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox.json_types import JsonObject, as_objects

WORDS = "Only half of it: <b> & *99*"


async def said_under(
    house: House, verdict: Verdict, text: str, user: str
) -> JsonObject:
    """Write under a card; return the private answer."""
    card = await house.card(verdict)
    await house.actor(user).say(CHANNEL, text, str(card["ts"]))
    return await house.actor(user).message_with(CHANNEL, lambda m: m["ephemeral"])


async def opened_form(house: House, offer: JsonObject, action: Action) -> JsonObject:
    ana = house.actor("U0ANA")
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
    each_house: House, action: Action, block: Input
) -> None:
    house = each_house
    async with house.running():
        verdict = await house.refund()
        offer = await said_under(house, verdict, f"@twokey {WORDS}", "U0ANA")
        assert offered(offer) == ["respond_words", "edit_words", "reject_words"]

        form = await opened_form(house, offer, action)

        (box,) = [b for b in as_objects(form["blocks"]) if b["block_id"] == block]
        assert box["element"]["initial_value"] == WORDS
        assert await house.store.queue(house.keys).depth() == 0
    assert house.sandbox.problems == []


async def test_what_is_submitted_is_the_decision(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        offer = await said_under(house, verdict, f"@twokey {WORDS}", "U0ANA")
        await opened_form(house, offer, Action.RESPOND_WORDS)

        await house.actor("U0ANA").submit()

        item = (await house.approval(verdict)).items[0]
        assert item.state is ItemState.ANSWERED
        assert item.settlement is not None
        assert item.settlement.text == WORDS


async def test_an_edit_of_those_words_offers_the_new_ones(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        ana = house.actor("U0ANA")
        ts = await ana.say(CHANNEL, "@twokey no", str(card["ts"]))
        await ana.message_with(CHANNEL, lambda m: m["ephemeral"])

        await ana.edit(CHANNEL, ts, "@twokey no, half of it")

        offer = await ana.message_with(CHANNEL, says("half of it"))
        offer = await ana.message_with(
            CHANNEL, lambda m: m["ephemeral"] and says("half of it")(m)
        )
        form = await opened_form(house, offer, Action.REJECT_WORDS)
        assert "no, half of it" in str(form["blocks"])
        assert await house.store.queue(house.keys).depth() == 0


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("U0CHLOE", "you are not on that list"),
        ("U0GUEST", "Guests cannot decide"),
    ],
)
async def test_who_may_not_decide_is_offered_nothing_and_asks_nothing(
    house: House, user: str, words: str
) -> None:
    async with house.running():
        verdict = await house.refund()

        answer = await said_under(house, verdict, "@twokey refund another", user)

        assert (words in str(answer["text"]), offered(answer)) == (True, [])
        assert await house.store.queue(house.keys).depth() == 0


async def test_who_asked_is_offered_to_take_the_call_back_and_nothing_else(
    house: House,
) -> None:
    async with house.running():
        verdict = await house.refund()

        answer = await said_under(house, verdict, "@twokey no longer needed", "U0DAN")

        assert offered(answer) == ["reject_words"]
        assert await house.store.queue(house.keys).depth() == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@twokey", "Write what you want to say"),
        ("@twokey " + "x" * 3_001, "Your message has 3001 characters"),
    ],
)
async def test_words_that_fit_into_no_form_are_refused_with_what_to_do(
    house: House, text: str, words: str
) -> None:
    async with house.running():
        answer = await said_under(house, await house.refund(), text, "U0ANA")

        assert (words in str(answer["text"]), offered(answer)) == (True, [])


async def test_nothing_is_offered_once_the_call_is_decided(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        await house.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        answer = await said_under(house, verdict, "@twokey stop", "U0BEN")

        assert "Nothing under this card waits" in str(answer["text"])
        assert offered(answer) == []
        assert await house.store.queue(house.keys).depth() == 1  # the agent's answer


async def test_under_a_notice_no_run_is_started_either(house: House) -> None:
    async with house.running():
        await house.submit(("post_notice", {"text": "hi"}))
        notice = await house.actor("U0ANA").message_with(CHANNEL, says("post_notice"))

        await house.actor("U0ANA").say(CHANNEL, "@twokey why?", str(notice["ts"]))

        await house.told("U0ANA", "Nothing under this card waits")
        assert await house.store.queue(house.keys).depth() == 0


async def test_each_waiting_call_of_a_batch_has_its_own_buttons(house: House) -> None:
    async with house.running():
        calls: list[tuple[str, JsonObject]] = [
            ("send_email", {"to": name}) for name in "abcdefg"
        ]
        verdicts = await house.submit(*calls, ("no_edits", {"x": 1}))

        offer = await said_under(house, verdicts[0], "@twokey not now", "U0ANA")
        assert len(offered(offer)) >= 3
        block = f"words:{_words_ts(offer)}:1"
        await house.actor("U0ANA").click(
            CHANNEL, str(offer["ts"]), Action.REJECT_WORDS, block
        )
        await house.actor("U0ANA").wait_for_view()
        await house.actor("U0ANA").submit()

        states = [item.state for item in (await house.approval(verdicts[0])).items]
        assert states[1] is ItemState.REJECTED
        assert set(states) - {states[1]} == {ItemState.PENDING}


async def test_words_for_a_card_that_changed_meanwhile_open_no_form(
    house: House,
) -> None:
    async with house.running():
        verdict = await house.refund()
        offer = await said_under(house, verdict, "@twokey no", "U0ANA")
        await edit_by_somebody_else(house, verdict)

        await house.actor("U0ANA").click(CHANNEL, str(offer["ts"]), Action.REJECT_WORDS)

        await house.told("U0ANA", "edited and approved by")
        assert await house.actor("U0ANA").view() is None


@pytest.mark.parametrize("forged", ["block", "purpose", "user"])
async def test_a_button_opens_only_what_this_person_wrote_under_this_card(
    house: House, forged: str
) -> None:
    async with house.running():
        verdict = await house.refund()
        offer = await said_under(house, verdict, "@twokey no", "U0ANA")
        approval = await house.approval(verdict)
        key, ts = house.config.seal_key, _words_ts(offer)
        purpose = Action.REJECT if forged == "purpose" else Action.REJECT_WORDS
        value = seal(approval, 0, key=key, team=TEAM, purpose=purpose)
        block = "words:1.1:0" if forged == "block" else f"words:{ts}:0"
        user = "U0BEN" if forged == "user" else "U0ANA"
        workspace = house.sandbox.workspace
        message = workspace.ephemerals[str(offer["ts"])]
        button: JsonObject = {
            "type": "button",
            "action_id": Action.REJECT_WORDS,
            "text": {"type": "plain_text", "text": "x"},
            "value": value,
        }
        row: JsonObject = {"type": "actions", "block_id": block, "elements": [button]}
        workspace.put_message(replace(message, blocks=(row,), ephemeral_to=user))

        await house.actor(user).click(CHANNEL, message.ts, Action.REJECT_WORDS, block)

        said = "does not belong to this card" if forged == "purpose" else "not kept any"
        await house.told(user, said)
        assert await house.actor(user).view() is None
        assert (await house.approval(verdict)).items[0].is_pending


def _words_ts(offer: JsonObject) -> str:
    (block,) = [b for b in as_objects(offer["blocks"]) if b["type"] == "rich_text"]
    return str(block["block_id"]).removeprefix("words:")
