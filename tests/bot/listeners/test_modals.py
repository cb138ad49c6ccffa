"""A form changes, rejects or answers a call, for the person it was opened for."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState, Verb
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, has_button, says
from tests.bot.listeners.test_large_batches import choose, opened, without, worker_dies
from tests.bot.markup_audit import objects
from tests.streams import audit_entries

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


async def test_a_corrected_edit_counts(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened_form(stack, verdict, Action.EDIT)
        view = await ana.wait_for_view()
        amount = block_of(view, "amount")

        errors = await ana.submit({amount: "5000", Input.REASON: "half"})
        assert "1000" in errors[amount]
        assert (await stack.approval(verdict)).rev == 1
        assert await ana.submit({amount: "449.50", Input.REASON: "half"}) == {}

        item = await stack.item(verdict)
        assert item.state is ItemState.AUTHORIZED
        assert item.args == {"amount": 449.5, "order_id": "78291"}
        assert item.edit is not None
        assert (item.edit.by.user, item.edit.reason) == ("U0ANA", "half")
        await stack.card(verdict, says("449.5"))
        assert await ana.view() is None
    assert stack.sandbox.problems == []


async def test_a_form_that_is_too_late_says_so_inside(live: Stack) -> None:
    verdict = await live.refund()
    ana = await opened_form(live, verdict, Action.EDIT)
    await live.click(verdict, Action.APPROVE, "U0BEN")

    await ana.submit()

    await ana.wait_for_view(says("approved by <@U0BEN>"))
    assert len((await live.item(verdict)).votes) == 1


@pytest.mark.slow
async def test_a_long_call_is_approved_after_every_page(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note=LONG)
        ana = await opened_form(stack, verdict, Action.VIEW_ALL)
        stack.sandbox.faults.plan("http_500", "views.update")
        await ana.act_in_view(Action.PAGE_NEXT)
        await ana.wait_for_view(says("Slack did not show the window"))
        await ana.close_view()

        pages = 1
        while has_next(await top(ana)):
            await turn(ana)
            pages += 1
        assert pages > 2
        assert "THE END" in "".join(await texts(ana))
        await ana.submit()

        assert (await stack.item(verdict)).state is ItemState.AUTHORIZED
    assert stack.sandbox.problems == []


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


async def test_edit_of_a_long_call_opens_its_pages_first(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note="words " * 1_500 + "end")
        ana = await opened_form(stack, verdict, Action.EDIT)

        view = await top(ana)
        assert view["callback_id"] == View.DETAILS
        assert "go through every page first" in str(view["blocks"])
        await turn_to_the_end(ana)
        await ana.act_in_view(Action.EDIT)

        await ana.wait_for_view(lambda view: view["callback_id"] == View.EDIT)
        assert await ana.submit() == {}
        item = await stack.item(verdict)
        assert (item.state, item.edit) == (ItemState.AUTHORIZED, None)
    assert stack.sandbox.problems == []


async def top(person: Actor) -> JsonObject:
    return as_object(await person.view())


async def texts(person: Actor) -> list[str]:
    """Return every text of the modal on top."""
    found: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            members = cast("dict[str, object]", node)
            if isinstance(members.get("text"), str):
                found.append(str(members["text"]))
            for member in members.values():
                walk(member)
        elif isinstance(node, list):
            for each in cast("list[object]", node):
                walk(each)

    walk((await top(person))["blocks"])
    return found


def has_next(view: JsonObject) -> bool:
    return f"'{Action.PAGE_NEXT.value}'" in str(view["blocks"])


async def turn(person: Actor) -> None:
    before = str((await top(person))["hash"])
    await person.act_in_view(Action.PAGE_NEXT)
    await person.wait_for_view(lambda view: view["hash"] != before)


async def turn_to_the_end(person: Actor) -> None:
    while has_next(await top(person)):
        await turn(person)


async def test_an_unchanged_edit_does_not_replace_approve(stack: Stack) -> None:
    rules = stack.policy.tools["process_refund"]
    limited = rules.with_(allow=(Verb.EDIT, Verb.REJECT))
    tools = {**stack.policy.tools, "process_refund": limited}
    stack.policy = stack.policy.with_(tools=tools)
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened_form(stack, verdict, Action.EDIT)

        await ana.submit()

        await ana.wait_for_view(says("you changed nothing"))
        assert (await stack.approval(verdict)).rev == 1


NOTE = "the bank has it <!channel> under *4711*"


async def doubtful(stack: Stack) -> tuple[Verdict, str]:
    """Return a call whose worker died, and the ts of its card."""
    verdict = await stack.refund()
    ts = str((await stack.card(verdict))["ts"])
    await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await worker_dies(stack, verdict)
    await stack.card(verdict, lambda m: has_button(m, Action.RECONCILE_NOTE))
    return verdict, ts


async def opened_note(stack: Stack, ts: str, user: str = "U0ANA") -> Actor:
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
        ana = await opened_note(stack, ts)

        assert await ana.submit({Input.FINDING: finding.value, Input.NOTE: NOTE}) == {}

        item = await stack.item(verdict)
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


async def test_a_note_may_be_left_out_and_a_choice_may_not(live: Stack) -> None:
    verdict, ts = await doubtful(live)
    ana = await opened_note(live, ts)

    errors = await ana.submit({Input.NOTE: NOTE})
    rev = (await live.approval(verdict)).rev

    assert list(errors) == [Input.FINDING]
    before = await live.item(verdict)
    assert (before.state, before.observations) == (ItemState.IN_DOUBT, ())
    assert await ana.submit({Input.FINDING: "skip", Input.NOTE: None}) == {}
    after = await live.approval(verdict)
    assert after.rev > rev
    assert [one.note for one in after.items[0].observations] == [""]


async def test_an_overtaken_form_changes_nothing(live: Stack) -> None:
    verdict, ts = await doubtful(live)
    ana = await opened_note(live, ts)
    await live.actor("U0BEN").click(CHANNEL, ts, Action.RECONCILE_SKIP)
    await live.card(verdict, lambda m: not has_button(m, Action.RECONCILE_NOTE))

    await ana.submit({Input.FINDING: "executed", Input.NOTE: NOTE})

    view = await ana.wait_for_view()
    assert "Nothing changed" in str(view["blocks"])
    item = await live.item(verdict)
    assert (item.finding, len(item.observations)) == (Finding.SKIP, 1)


def markdown_of(message: JsonObject) -> str:
    """Return everything that Slack interprets."""
    parts = objects(as_objects(message["blocks"]))
    return str([part for part in parts if part.get("type") == "mrkdwn"])


# A form whose decision does not count yet stays open with its input.


REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
REASON = "The customer wrote that only half of it was damaged."
WRITTEN: dict[str, object] = {Input.REASON: REASON}


async def kept_form(stack: Stack, verdict: Verdict, action: Action) -> Actor:
    ana = await stack.click(verdict, action)
    await ana.wait_for_view()
    return ana


async def words_in(person: Actor) -> str:
    """Return the reason in the form on top."""
    view = as_object(await person.view())
    values = as_object(as_object(view["state"])["values"])
    return str(as_object(as_object(values[Input.REASON])[Input.REASON])["value"])


async def test_an_edit_can_be_sent_once_the_freeze_ends(live: Stack) -> None:
    verdict = await live.refund()
    ana = await kept_form(live, verdict, Action.EDIT)
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
    real, failures = ReviewService.decide, [StoreUnavailable("away")]

    async def away(self: ReviewService, *args: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(self, *args, **named)

    monkeypatch.setattr(ReviewService, "decide", away)
    async with stack.running():
        verdict = await stack.refund()
        ana = await kept_form(stack, verdict, Action.REJECT)

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


async def full_details(stack: Stack, call: Verdict) -> tuple[Actor, JsonObject]:
    ana = await stack.click(call, Action.VIEW_ALL)
    return ana, await ana.wait_for_view()


def said(view: JsonObject) -> str:
    return json.dumps(view["blocks"], ensure_ascii=False)


async def test_full_details_say_that_the_call_is_frozen(live: Stack) -> None:
    call = await live.refund()
    _, before = await full_details(live, call)

    await frozen(live)
    _, page = await full_details(live, call)

    assert ONE not in said(before)
    assert ONE in said(page)


async def test_full_details_say_what_the_policy_asks_for_by_now(live: Stack) -> None:
    call = await live.refund()
    live.policy = STRICTER

    _, page = await full_details(live, call)

    assert "Needs 2 people" in said(page)


async def test_the_form_for_many_calls_shows_a_freeze(live: Stack) -> None:
    _, _, ts = await opened(live)
    before = said(await (await choose(live, "U0ANA", ts)).view() or {})
    await frozen(live)

    ana = await choose(live, "U0BEN", ts)
    form = await ana.view() or {}
    await ana.submit(without(1))
    last = await ana.wait_for_view(
        lambda view: view["callback_id"] == View.CHOOSE_CONFIRM
    )

    assert "Frozen" not in before
    assert ONE in said(form)
    assert ONE in said(last)
