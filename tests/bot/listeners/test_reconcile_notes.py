"""A doubt is reconciled with one click, or in a form that takes a note along."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.bot.listeners.test_batches_and_doubt import worker_dies
from tests.bot.markup_audit import objects
from tests.streams import audit_entries

NOTE = "the bank has it <!channel> under *4711*"


async def doubtful(stack: Stack) -> tuple[Verdict, str]:
    """Return a call whose worker died, and the ts of its card."""
    verdict = await stack.refund()
    ts = str((await stack.card(verdict))["ts"])
    await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await worker_dies(stack, verdict)
    await stack.card(verdict, lambda m: has_button(m, Action.RECONCILE_NOTE))
    return verdict, ts


async def opened(stack: Stack, ts: str, user: str = "U0ANA") -> Actor:
    """Open the form with the note."""
    person = stack.actor(user)
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
    each_stack: Stack, finding: Finding, state: ItemState
) -> None:
    stack = each_stack
    async with stack.running():
        verdict, ts = await doubtful(stack)
        ana = await opened(stack, ts)

        assert await ana.submit({Input.FINDING: finding.value, Input.NOTE: NOTE}) == {}

        item = (await stack.approval(verdict)).items[0]
        assert item.state is state
        assert [(one.finding, one.note) for one in item.observations] == [
            (finding, NOTE)
        ]
        card = await stack.card(verdict, says("Note:"))
        assert NOTE in json.dumps(card["blocks"], ensure_ascii=False)
        assert NOTE not in markdown_of(card)
        entries = await audit_entries(stack.store.conn, stack.keys)
        [event] = [one for one in entries if one.name is EventName.ITEM_RECONCILED]
        assert event.data["note"] == NOTE
        assert await ana.view() is None


async def test_a_note_may_be_left_out_and_a_choice_may_not(stack: Stack) -> None:
    async with stack.running():
        verdict, ts = await doubtful(stack)
        ana = await opened(stack, ts)

        errors = await ana.submit({Input.NOTE: NOTE})
        rev = (await stack.approval(verdict)).rev

        assert list(errors) == [Input.FINDING]
        before = (await stack.approval(verdict)).items[0]
        assert (before.state, before.observations) == (ItemState.IN_DOUBT, ())
        assert await ana.submit({Input.FINDING: "skip", Input.NOTE: None}) == {}
        after = await stack.approval(verdict)
        assert after.rev > rev
        assert [one.note for one in after.items[0].observations] == [""]


async def test_an_overtaken_form_changes_nothing(stack: Stack) -> None:
    async with stack.running():
        verdict, ts = await doubtful(stack)
        ana = await opened(stack, ts)
        await stack.actor("U0BEN").click(CHANNEL, ts, Action.RECONCILE_SKIP)
        await stack.card(verdict, lambda m: not has_button(m, Action.RECONCILE_NOTE))

        await ana.submit({Input.FINDING: "executed", Input.NOTE: NOTE})

        view = await ana.wait_for_view()
        assert "Nothing changed" in str(view["blocks"])
        item = (await stack.approval(verdict)).items[0]
        assert (item.finding, len(item.observations)) == (Finding.SKIP, 1)


def markdown_of(message: JsonObject) -> str:
    """Return everything that Slack interprets."""
    parts = objects(as_objects(message["blocks"]))
    return str([part for part in parts if part.get("type") == "mrkdwn"])
