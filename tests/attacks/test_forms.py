"""A form counts for whom, what and when it was opened, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from keyturn.bot.ids import VALUE, Action, Input, View
from keyturn.bot.modals import choose
from keyturn.gateway.approvals.decisions import Edit, Reject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.cards import ViewBinding
from keyturn.sandbox.json_types import JsonObject, as_object
from tests.attacks.attacker import (
    Payload,
    Trace,
    changed,
    deliver,
    submission_payload,
    trace,
)
from tests.attacks.test_wrong_people import click_on, member
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.listeners import test_large_batches as batches
from tests.bot.listeners import test_review_together as together
from tests.bot.tampering import expire

FORMS = {
    View.EDIT: Action.EDIT,
    View.REJECT: Action.REJECT,
    View.RESPOND: Action.RESPOND,
    View.DETAILS: Action.VIEW_ALL,
}
WORDS = {
    Input.REASON.value: {Input.REASON.value: {"value": "because"}},
    Input.MESSAGE.value: {Input.MESSAGE.value: {"value": "because"}},
}
CALM = ("othing was recorded", "Nothing changed")


async def opened(
    stack: Stack, verdict: Verdict, view: View, user: str = "U0ANA"
) -> Payload:
    """Open a form as a person; return the submission that would count."""
    card = await stack.card(verdict)
    person = stack.actor(user)
    await person.click(CHANNEL, str(card["ts"]), FORMS[view])
    found = await person.wait_for_view(lambda top: top["callback_id"] == view)
    return submission_payload(found, {**WORDS, **typed(found)}, user=user)


def note_for(view: View) -> str:
    """Return an argument for which this form is there: long calls have pages."""
    return "n" * 12_000 if view is View.DETAILS else "short"


def typed(view: JsonObject) -> JsonObject:
    """Return the values of an edit form, with one of its texts changed."""
    values: JsonObject = {}
    for block in view["blocks"]:
        inner = as_object(block.get("element"))
        if block["type"] == "input" and inner.get("action_id") == VALUE:
            held = inner.get("initial_value", "")
            is_text = inner["type"] == "plain_text_input"
            new = "78292" if is_text and held == "78291" else held
            values[block["block_id"]] = {VALUE: {"type": inner["type"], "value": new}}
    return values


async def told(stack: Stack, payload: Payload) -> str:
    """Submit; return the answer, which is never an internal error."""
    status, body = await deliver(stack, payload)
    assert status == 200
    return body


def in_the_view_of(theirs: Payload, good: Payload) -> Payload:
    return changed(good, "view.id", theirs["view"]["id"])


def sealed_like(theirs: Payload, good: Payload) -> Payload:
    return changed(good, SEAL, theirs["view"]["private_metadata"])


def as_another_form(good: Payload) -> Payload:
    is_no = good["view"]["callback_id"] == View.REJECT
    other = View.RESPOND if is_no else View.REJECT
    return changed(good, "view.callback_id", other.value)


SEAL = "view.private_metadata"
SPOILS: list[Callable[[Payload], Payload]] = [
    lambda good: changed(good, "user.id", "U0BEN"),
    lambda good: changed(good, "view.id", "V0UNKNOWN"),
    lambda good: changed(good, "team.id", "T0OTHER"),
    # A flipped bit, and another version.
    lambda good: changed(good, SEAL, f"{good['view']['private_metadata'][:-3]}AAA"),
    lambda good: changed(
        good, SEAL, good["view"]["private_metadata"].replace(":1:", ":2:", 1)
    ),
    as_another_form,
]
"""Without what belongs to another person or call."""


@pytest.mark.slow
@pytest.mark.parametrize("view", [View.EDIT, View.REJECT, View.RESPOND, View.DETAILS])
async def test_a_tampered_form_records_nothing(stack: Stack, view: View) -> None:
    async with stack.running():
        verdict = await stack.refund(note=note_for(view))
        good = await opened(stack, verdict, view)
        before = await trace(stack, verdict)

        other = await stack.refund(thread="other", note=note_for(view))
        spoiled = [
            *(spoil(good) for spoil in SPOILS),
            sealed_like(await opened(stack, other, view, "U0BEN"), good),
            in_the_view_of(await opened(stack, verdict, view, "U0BEN"), good),
        ]
        for number, payload in enumerate(spoiled):
            answer = await told(stack, payload)
            assert any(words in answer for words in CALM), (number, answer)
            assert is_same(await trace(stack, verdict), before), number


async def confirming(stack: Stack, view: View | Action) -> tuple[Verdict, Payload]:
    """Open a form as Ana; return a call of it, and the submission that decides it."""
    if view is Action.REVIEW:
        verdict, _ = await together.waiting(stack, 2)
        ana = await together.reviewing(stack, count=2)
        await together.confirmed(ana, {})
        view = View.CHOOSE_CONFIRM
    elif view is View.CHOOSE_CONFIRM:
        verdict, _, ts = await batches.opened(stack)
        ana = await batches.choose(stack, "U0ANA", ts)
        await ana.submit({**batches.without(1), Input.OTHERS: "reject"})
    else:
        verdict = await stack.refund()
        return verdict, await opened(stack, verdict, View(view))
    page = await ana.wait_for_view(lambda top: top["callback_id"] == view)
    return verdict, submission_payload(page, WORDS)


async def unsealed(stack: Stack, key: str, binding: ViewBinding) -> bytes:
    return binding.model_dump_json().encode()


async def of_another_view(stack: Stack, key: str, binding: ViewBinding) -> bytes:
    await stack.store.cards.bind_view(stack.keys, "V0OTHER", binding)
    return await stored(stack, stack.keys.view("V0OTHER"))


async def with_another_end(stack: Stack, key: str, binding: ViewBinding) -> bytes:
    return (await stored(stack, key))[:-1] + b" "


FORGED = (unsealed, of_another_view, with_another_end)


async def stored(stack: Stack, key: str) -> bytes:
    found = await stack.store.conn.command("GET", key)
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("encrypts", [False, True])
@pytest.mark.parametrize(
    "view",
    [View.EDIT, View.REJECT, View.RESPOND, Action.REVIEW, View.CHOOSE_CONFIRM],
)
async def test_a_form_whose_binding_somebody_wrote_records_nothing(
    stack: Stack, view: View | Action, *, encrypts: bool
) -> None:
    """Not even with the words that it had: others would count as well."""
    stack.store.conn.encrypts = encrypts
    async with stack.running():
        verdict, good = await confirming(stack, view)
        key, command = stack.keys.view(good["view"]["id"]), stack.store.conn.command
        binding = await stack.store.cards.bound_view(stack.keys, good["view"]["id"])
        assert binding
        ours, ids = await stored(stack, key), map(str, count())
        assert (b"U0ANA" in ours) is not encrypts

        for forge in FORGED:
            await command("SET", key, await forge(stack, key, binding), "KEEPTTL")
            for _ in range(2):
                answer = await told(stack, changed(good, "trigger_id", next(ids)))
                assert "This window is not known any more" in answer, forge
            assert (await stack.item(verdict)).is_pending
        await command("SET", key, ours, "KEEPTTL")
        await told(stack, good)

        assert not (await stack.item(verdict)).is_pending
        events = security_events(stack.store, "default")
        found = [(one.reason, one.data["about"]) async for one in events]
        assert found == [("seal_wrong", "view")] * len(FORGED), "each once"


async def test_a_page_is_not_decided_with_an_older_choice_of_its_form(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal does not distinguish them, so the verified call is the decided one."""
    async with stack.running():
        verdict, good = await confirming(stack, View.CHOOSE_CONFIRM)
        read = stack.store.cards.bound_view
        newest = await read(stack.keys, good["view"]["id"])
        assert newest
        older = [
            newest.with_(
                purpose=View.CHOOSE,
                staged=choose.Choice(approve=(0,)).model_dump_json(),
            )
        ]

        async def raced(keys: Keys, view_id: str) -> ViewBinding | None:
            return older.pop() if older else await read(keys, view_id)

        monkeypatch.setattr(stack.store.cards, "bound_view", raced)
        answer = await told(stack, good)

        assert not older
        assert "This window is not known any more" in answer
        assert (await stack.item(verdict)).is_pending


@pytest.mark.slow
@pytest.mark.parametrize("view", [View.EDIT, View.REJECT, View.RESPOND])
@pytest.mark.parametrize("moment", ["decided", "edited", "expired"])
async def test_a_late_form_does_nothing(stack: Stack, view: View, moment: str) -> None:
    async with stack.running():
        verdict = await stack.refund()
        good = await opened(stack, verdict, view)
        if moment == "expired":
            await expire(stack, await stack.approval(verdict))
        else:
            change = Edit(args={"amount": 1, "order_id": "78291"})
            await stack.reviews.decide(
                await click_on(stack, verdict),
                change if moment == "edited" else Reject(reason="no"),
                member("U0BEN"),
            )
        decided = (await stack.item(verdict)).decision

        answer = await told(stack, good)

        assert any(words in answer for words in CALM), answer
        item = await stack.item(verdict)
        assert item.decision == decided
        assert not item.is_pending


async def test_a_button_in_a_form_counts_for_its_reader_and_call(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note="n" * 12_000)
        other = await stack.refund(thread="other", note="n" * 12_000)
        mine = await opened(stack, verdict, View.DETAILS)
        await opened(stack, other, View.DETAILS, "U0BEN")
        theirs = as_object(await stack.actor("U0BEN").view())
        before = await trace(stack, other)

        # Ana turns the page of Ben's call inside her own window.
        button = next(
            element
            for block in theirs["blocks"]
            for element in block.get("elements", [])
            if element.get("action_id") == Action.PAGE_NEXT
        )
        click = page_click(mine, str(button["value"]))
        status, _ = await deliver(stack, click)

        seen = await stack.store.conn.command(
            "HLEN", stack.keys.opened((await stack.approval(other)).id)
        )
        assert (status, seen) == (200, 1), "only Ben's first page"
        assert is_same(await trace(stack, other), before)


def page_click(form: Payload, value: str) -> Payload:
    """Return a click on a page button in a person's modal."""
    return {
        "type": "block_actions",
        "team": form["team"],
        "user": form["user"],
        "container": {"type": "view", "view_id": form["view"]["id"]},
        "trigger_id": "1.2.3",
        "view": form["view"],
        "actions": [
            {
                "type": "button",
                "action_id": Action.PAGE_NEXT.value,
                "block_id": "b",
                "value": value,
                "action_ts": "1.0",
            }
        ],
    }


def is_same(after: Trace, before: Trace) -> bool:
    """Return whether one approval is unchanged; others may have been opened."""
    return (after.approval, after.card) == (before.approval, before.card)
