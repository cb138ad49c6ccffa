"""A doubt is settled with one click, or in a form that takes a note along."""

from __future__ import annotations

import pytest

from tests.bot.bot_house import CHANNEL, POLICY, House, has_button, says
from tests.bot.listeners.test_batches_and_doubt import worker_dies
from twokey.bot.ids import Action, Input, View
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.reconciling import MAX_NOTE
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.store.outbox import audit_entries
from twokey.sandbox.client import Person as Actor
from twokey.sandbox.json_types import JsonObject, as_objects

NOTE = "the bank has it <!channel> under *4711*"


async def doubtful(house: House) -> tuple[Verdict, str]:
    """Return a call whose worker died, and the ts of its card."""
    verdict = await house.refund()
    ts = str((await house.card(verdict))["ts"])
    await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await worker_dies(house, verdict)
    await house.card(verdict, lambda m: has_button(m, Action.RECONCILE_NOTE))
    return verdict, ts


async def opened(house: House, ts: str, user: str = "U0ANA") -> Actor:
    """Open the form with the note."""
    person = house.actor(user)
    await person.click(CHANNEL, ts, Action.RECONCILE_NOTE)
    await person.wait_for_view(lambda view: view["callback_id"] == View.RECONCILE)
    return person


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (Finding.EXECUTED, ItemState.EXECUTED),
        (Finding.RERUN, ItemState.AUTHORIZED),
        (Finding.SKIP, ItemState.FAILED),
    ],
)
async def test_a_note_is_kept_with_what_was_found_and_shown_as_plain_text(
    each_house: House, finding: Finding, state: ItemState
) -> None:
    house = each_house
    async with house.running():
        verdict, ts = await doubtful(house)
        ana = await opened(house, ts)

        assert await ana.submit({Input.FINDING: finding.value, Input.NOTE: NOTE}) == {}

        item = (await house.approval(verdict)).items[0]
        assert item.state is state
        assert [(one.finding, one.note) for one in item.observations] == [
            (finding, NOTE)
        ]
        card = await house.card(verdict, says("Note:"))
        assert NOTE in texts_of_rich_text(card)
        assert NOTE not in markdown_of(card)
        entries = await audit_entries(house.store.conn, house.keys)
        [event] = [one for one in entries if one.name is EventName.ITEM_RECONCILED]
        assert event.data["note"] == NOTE
        assert await ana.view() is None


async def test_a_note_may_be_left_out_and_a_choice_may_not(house: House) -> None:
    async with house.running():
        verdict, ts = await doubtful(house)
        ana = await opened(house, ts)

        errors = await ana.submit({Input.NOTE: NOTE})
        rev = (await house.approval(verdict)).rev

        assert list(errors) == [Input.FINDING]
        before = (await house.approval(verdict)).items[0]
        assert (before.state, before.observations) == (ItemState.IN_DOUBT, ())
        assert await ana.submit({Input.FINDING: "skip", Input.NOTE: None}) == {}
        after = await house.approval(verdict)
        assert after.rev > rev
        assert [one.note for one in after.items[0].observations] == [""]


async def test_slack_itself_takes_no_note_that_is_too_long(house: House) -> None:
    async with house.running():
        _, ts = await doubtful(house)
        ana = await opened(house, ts)
        view = await ana.wait_for_view()

        [note] = [
            block["element"]
            for block in as_objects(view["blocks"])
            if block.get("block_id") == Input.NOTE
        ]

        assert isinstance(note, dict)
        assert note["max_length"] == MAX_NOTE


async def test_a_form_that_was_overtaken_changes_nothing_and_says_so(
    house: House,
) -> None:
    async with house.running():
        verdict, ts = await doubtful(house)
        ana = await opened(house, ts)
        await house.actor("U0BEN").click(CHANNEL, ts, Action.RECONCILE_SKIP)
        await house.card(verdict, lambda m: not has_button(m, Action.RECONCILE_NOTE))

        await ana.submit({Input.FINDING: "executed", Input.NOTE: NOTE})

        view = await ana.wait_for_view()
        assert "Your click changed nothing" in str(view["blocks"])
        item = (await house.approval(verdict)).items[0]
        assert (item.found, len(item.observations)) == (Finding.SKIP, 1)


async def test_whoever_asked_for_the_call_gets_no_form(house: House) -> None:
    async with house.running():
        _, ts = await doubtful(house)

        await house.actor("U0DAN").click(CHANNEL, ts, Action.RECONCILE_NOTE)

        await house.told("U0DAN", "You asked for this one yourself")
        assert await house.actor("U0DAN").view() is None


async def test_a_call_that_failed_is_asked_about_in_words_that_are_true(
    house: House,
) -> None:
    asking = POLICY.replace(
        "    tier: approve", "    tier: approve\n    on_failure: ask"
    )
    house.policy = load_policy(asking, "policy.yml")
    async with house.running():
        verdict = await house.refund()
        ts = str((await house.card(verdict))["ts"])
        await house.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await house.execute(verdict, ok=False)

        card = await house.card(verdict, lambda m: has_button(m, Action.RECONCILE_NOTE))
        ana = await opened(house, ts)
        view = str((await ana.wait_for_view())["blocks"])

        assert "failed. Please say whether it runs again" in str(card["text"])
        assert "Did it run?" not in str(card["blocks"])
        for shown in (str(card["blocks"]), view):
            assert "It took effect" in shown
            assert "'It ran'" not in shown


def texts_of_rich_text(message: JsonObject) -> str:
    """Return everything that stands in blocks whose text Slack does not interpret."""
    blocks = as_objects(message["blocks"])
    return str([block for block in blocks if block["type"] == "rich_text"])


def markdown_of(message: JsonObject) -> str:
    """Return everything else."""
    blocks = as_objects(message["blocks"])
    return str([block for block in blocks if block["type"] != "rich_text"])
