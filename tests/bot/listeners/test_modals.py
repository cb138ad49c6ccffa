"""A form changes, rejects or answers a call, for the person it was opened for."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from tests.bot.bot_stack import POLICY, Stack, blocks_of, has_button, says
from tests.bot.listeners.test_large_batches import choose, opened, without
from tests.bot.markup_audit import assert_tame
from tests.bot.strategies import CANARY
from tests.panics import failing

LONG = "x" * 30_000 + "THE END"


async def opened_form(
    stack: Stack, verdict: Verdict, action: Action, user: str = "U0ANA"
) -> Actor:
    """Open a form from the card of a call."""
    person = await stack.click(verdict, action, user)
    await person.wait_for_view()
    return person


def block_of(view: JsonObject, name: str) -> str:
    """Return the block id of the input with this label."""
    for block in as_objects(view["blocks"]):
        if block["type"] == "input" and name in str(as_object(block["label"])["text"]):
            return str(block["block_id"])
    raise AssertionError(f"no input {name!r} in {view!r}")


async def test_a_corrected_edit_counts(each_live: Stack) -> None:
    live = each_live
    verdict = await live.refund()
    ana = await opened_form(live, verdict, Action.EDIT)
    view = await ana.wait_for_view()
    amount = block_of(view, "amount")

    errors = await ana.submit({amount: "5000", Input.REASON: "half"})
    assert "1000" in errors[amount]
    assert (await live.approval(verdict)).rev == 1
    assert await ana.submit({amount: "449.50", Input.REASON: "half"}) == {}

    item = await live.item(verdict)
    assert item.state is ItemState.AUTHORIZED
    assert item.args == {"amount": 449.5, "order_id": "78291"}
    assert item.edit is not None
    assert (item.edit.by.user, item.edit.reason) == ("U0ANA", "half")
    await live.card(verdict, says("449.5"))
    assert await ana.view() is None


@pytest.mark.slow
async def test_a_long_call_is_approved_after_every_page(live: Stack) -> None:
    verdict = await live.refund(note=LONG)
    ana = await opened_form(live, verdict, Action.VIEW_ALL)
    live.sandbox.faults.plan("http_500", "views.update")
    await ana.act_in_view(Action.PAGE_NEXT)
    await ana.wait_for_view(says("Slack did not show the window"))
    await ana.close_view()

    pages = 1
    while has_next(await top(ana)):
        await turn(ana)
        pages += 1
    assert pages > 2
    assert "THE END" in blocks_of(await top(ana))
    await ana.submit()

    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


@pytest.mark.slow
async def test_the_last_page_alone_does_not_approve(live: Stack) -> None:
    verdict = await live.refund(note=LONG)
    ana = await opened_form(live, verdict, Action.VIEW_ALL)
    await turn_to_the_end(ana)
    last = await top(ana)
    approval = await live.approval(verdict)
    key = live.keys.opened(approval.id)
    await live.store.conn.command("DEL", key)

    await ana.submit()

    await ana.wait_for_view(says("go through every page"))
    assert (await live.approval(verdict)).rev == 1
    assert last["callback_id"] == View.DETAILS


async def test_edit_of_a_long_call_opens_its_pages_first(live: Stack) -> None:
    verdict = await live.refund(note="words " * 1_500 + "end")
    ana = await opened_form(live, verdict, Action.EDIT)

    view = await top(ana)
    assert view["callback_id"] == View.DETAILS
    assert "go through every page first" in str(view["blocks"])
    await turn_to_the_end(ana)
    viewed = await live.audit(EventName.APPROVAL_VIEWED)
    pages = int(viewed[0].data["pages"])
    assert [int(one.data["page"]) for one in viewed] == [*range(1, pages + 1)]
    assert {one.actor for one in viewed} == {"T0SANDBOX/U0ANA"}
    assert all(one.request_digest and one.action_hash for one in viewed)
    await ana.act_in_view(Action.EDIT)

    await ana.wait_for_view(lambda view: view["callback_id"] == View.EDIT)
    assert await ana.submit() == {}
    item = await live.item(verdict)
    assert (item.state, item.edit) == (ItemState.AUTHORIZED, None)


async def top(person: Actor) -> JsonObject:
    return as_object(await person.view())


def has_next(view: JsonObject) -> bool:
    return f"'{Action.PAGE_NEXT.value}'" in str(view["blocks"])


async def turn(person: Actor) -> None:
    before = str((await top(person))["hash"])
    await person.act_in_view(Action.PAGE_NEXT)
    await person.wait_for_view(lambda view: view["hash"] != before)


async def turn_to_the_end(person: Actor) -> None:
    while has_next(await top(person)):
        await turn(person)


async def test_an_unchanged_edit_does_not_replace_approve(live: Stack) -> None:
    listed = "  process_refund:\n"
    live.put_policy((listed, f"{listed}    allow: [edit, reject]\n"))
    verdict = await live.refund()
    ana = await opened_form(live, verdict, Action.EDIT)

    await ana.submit()

    await ana.wait_for_view(says("you changed nothing"))
    assert (await live.approval(verdict)).rev == 1


NOTE = f"the bank has it <!channel> under *{CANARY}*"


async def doubtful(stack: Stack) -> Verdict:
    """Return a call whose worker died, once its card asks about it."""
    verdict = await stack.refund()
    await stack.click(verdict, Action.APPROVE)
    await stack.worker_dies(verdict)
    await stack.card(verdict, lambda m: has_button(m, Action.RECONCILE_NOTE))
    return verdict


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (Action.RECONCILE_EXECUTED, ItemState.EXECUTED),
        (Action.RECONCILE_RERUN, ItemState.AUTHORIZED),
        (Action.RECONCILE_SKIP, ItemState.FAILED),
    ],
)
async def test_a_button_says_what_became_of_a_call_in_doubt(
    live: Stack, action: Action, state: ItemState
) -> None:
    verdict = await doubtful(live)

    await live.click(verdict, action)

    assert (await live.item(verdict)).state is state
    await live.card(verdict, lambda m: not has_button(m, action))


async def test_a_note_is_kept_with_what_was_found_and_shown_as_plain_text(
    each_live: Stack,
) -> None:
    live = each_live
    verdict = await doubtful(live)
    ana = await opened_form(live, verdict, Action.RECONCILE_NOTE)

    assert await ana.submit({Input.FINDING: "skip", Input.NOTE: NOTE}) == {}

    item = await live.item(verdict)
    assert [(one.finding, one.note) for one in item.observations] == [
        (Finding.SKIP, NOTE)
    ]
    card = await live.card(verdict, says("Note:"))
    assert NOTE in blocks_of(card)
    assert_tame(card["blocks"], str(card["text"]))
    [event] = await live.audit(EventName.ITEM_RECONCILED)
    assert event.data["note"] == NOTE
    assert await ana.view() is None


# A form whose decision does not count yet stays open with its input.


REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
REASON = "The customer wrote that only half of it was damaged."
WRITTEN: dict[str, object] = {Input.REASON: REASON}


async def words_in(person: Actor) -> str:
    """Return the reason in the form on top."""
    view = as_object(await person.view())
    values = as_object(as_object(view["state"])["values"])
    return str(as_object(as_object(values[Input.REASON])[Input.REASON])["value"])


async def test_an_edit_can_be_sent_once_the_freeze_ends(live: Stack) -> None:
    verdict = await live.refund()
    ana = await opened_form(live, verdict, Action.EDIT)
    await live.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")
    amount = {"field:0": "449.5"}

    await ana.submit(WRITTEN | amount)
    await ana.wait_for_view(says("frozen"))
    await ana.close_view()
    assert await words_in(ana) == REASON
    await live.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")
    await ana.submit(WRITTEN | amount)

    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


async def test_a_reason_is_not_lost_where_the_store_does_not_answer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ReviewService, "decide", StoreUnavailable("away"), times=1)
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened_form(stack, verdict, Action.REJECT)

        await ana.submit(WRITTEN)
        await ana.wait_for_view(lambda view: view["callback_id"] == View.NOTICE)
        assert (await stack.item(verdict)).state is ItemState.PENDING
        await ana.close_view()
        assert await words_in(ana) == REASON
        await ana.submit(WRITTEN)

        assert (await stack.item(verdict)).state is ItemState.REJECTED


# Forms that can approve a call show a freeze and the current requirement.


ONE = "*Frozen*: approve after the freeze ends."
STRICTER = load_policy(
    POLICY.replace("    tier: approve\n", "    tier: escalate\n"), "policy.yml"
)


async def frozen(stack: Stack) -> None:
    await stack.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")


async def test_full_details_show_a_freeze_and_what_the_policy_needs_by_now(
    live: Stack,
) -> None:
    verdict = await live.refund()
    ana = await opened_form(live, verdict, Action.VIEW_ALL)
    before = blocks_of(await top(ana))
    await frozen(live)
    live.policy = STRICTER

    ana = await opened_form(live, verdict, Action.VIEW_ALL)

    page = blocks_of(await top(ana))
    for words in (ONE, "Needs 2 people"):
        assert words not in before
        assert words in page


async def test_the_form_for_many_calls_shows_a_freeze(live: Stack) -> None:
    _, _, ts = await opened(live)
    before = blocks_of(await (await choose(live, "U0ANA", ts)).view() or {})
    await frozen(live)

    ana = await choose(live, "U0BEN", ts)
    form = await ana.view() or {}
    await ana.submit(without(1))
    last = await ana.wait_for_view(
        lambda view: view["callback_id"] == View.CHOOSE_CONFIRM
    )

    assert "Frozen" not in before
    assert ONE in blocks_of(form)
    assert ONE in blocks_of(last)
