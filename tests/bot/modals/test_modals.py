"""Each modal reads as written down, and its submission as it was meant."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.blocks import notice
from keyturn.bot.ids import PAGE, Action, Input, Sealed, View, unseal, verify
from keyturn.bot.modals import call_form, details, edit
from keyturn.bot.text import template
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.record import Approval, TriageResult
from keyturn.gateway.approvals.requirement import Observation, Revocation
from keyturn.gateway.protocol.records import (
    Evidence,
    Finding,
    ItemState,
    Result,
    Tier,
    Verb,
)
from tests.bot.markup_audit import objects
from tests.bot.readable import view as as_text
from tests.bot.samples import (
    ANA,
    KEY,
    LATER,
    LISTED,
    NOW,
    REFUND,
    TEAM,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    in_state,
)
from tests.bot.slack_state import chosen, refused, typed, untouched
from tests.bot.snapshots import MODAL_TEXTS, assert_same

REFUNDS = an_approval()
LONG = an_approval(
    an_item({"body": "abcdefg " * 2_300}, tier=Tier.ESCALATE), an_item({}, index=1)
)
EDITED = an_approval(
    in_state(
        edited(a_refund(), REFUND | {"amount": 1.5}, reason="too much"),
        ItemState.EXECUTED,
        result=Result(ok=True, summary="booked"),
    )
)


RAISED = REFUNDS.items[0].with_(
    tier=Tier.ESCALATE,
    reasons=(LISTED, "Raised to escalate: a refund over 1000."),
    requirement=TWO.with_(approvals=3),
)


def long(text: str) -> str:
    """Return words that a card cuts."""
    return f"{text} {'many words ' * 30}THE END"


WORDY = in_state(
    edited(a_refund(), REFUND | {"amount": 1.5}), ItemState.EXECUTED
).with_(
    agent_description=long("a description"),
    evidence=(
        Evidence(title="The order", url="https://shop.example/orders/78291"),
        Evidence(title="The letter", text=long("a letter")),
    ),
    original_args={"amount": long("an amount")},
    triage=TriageResult(raised_to=Tier.ESCALATE, rationale=long("an opinion")),
    revoked=Revocation(reason=long("a reason"), at_ms=NOW),
    late_result=Result(ok=False, summary=long("a late result")),
    observations=tuple(
        Observation(
            vote=a_vote(a_refund(), ANA), finding=found, fence=1, note=long(found)
        )
        for found in Finding
    ),
)


def _page(approval: Approval, number: int = 1, now_ms: int = NOW) -> Any:
    return details.view(frame(approval, now_ms=now_ms), 0, number)


VIEWS: dict[str, Any] = {
    "edit": edit.view(frame(REFUNDS), 0),
    "edit_raised": edit.view(
        frame(REFUNDS),
        0,
        raised=RAISED,
        args=REFUND | {"amount": 1200},
    ),
    "edit_denied": edit.view(
        frame(REFUNDS),
        0,
        raised=RAISED.with_(
            tier=Tier.DENY, reasons=(LISTED, "Raised to deny: nobody refunds so much.")
        ),
        args={},
    ),
    "reject": call_form.rejection_form(frame(REFUNDS), 0),
    "reject_with_reason": call_form.rejection_form(
        frame(an_approval(a_refund(requires_reason=(Verb.EDIT, Verb.REJECT)))),
        0,
    ),
    "respond_in_batch": call_form.response_form(frame(LONG), 1),
    "details": _page(REFUNDS),
    "details_late": _page(REFUNDS, now_ms=LATER),
    "details_edited": _page(EDITED),
    "details_of_every_word": _page(an_approval(WORDY)),
    "details_last_page": _page(LONG, 99),
    "notice": notice("Not done", template("It is over.")),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_modal_reads_as_written_down(name: str) -> None:
    assert_same(MODAL_TEXTS, name, as_text(VIEWS[name]))


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("edit", View.EDIT),
        ("edit_raised", View.EDIT_RAISED),
        ("reject", View.REJECT),
        ("details", View.DETAILS),
    ],
)
def test_a_modal_is_sealed_for_its_purpose(name: str, purpose: View) -> None:
    view = VIEWS[name]
    sealed = unseal(view["private_metadata"])

    assert view["callback_id"] == purpose
    assert verify(sealed, REFUNDS, key=KEY, team=TEAM, purpose=purpose)
    assert not verify(sealed, REFUNDS, key=KEY, team=TEAM, purpose=View.RESPOND)


def _leads_to(number: int, action: Action) -> Sealed:
    """Return the seal of a button on a page of the long call."""
    sealed = unseal(_button(_page(LONG, number), action)["value"])
    purpose = Action.VIEW_ALL if action is Action.VIEW_ALL else PAGE
    assert verify(sealed, LONG, key=KEY, team=TEAM, purpose=purpose)
    return sealed


def test_pages_lead_to_each_other_and_the_last_one_to_the_next_call() -> None:
    last = details.page_count(LONG, 0)

    assert last > 2
    assert _leads_to(1, Action.PAGE_NEXT).page == 2
    assert _leads_to(last, Action.PAGE_BACK).page == last - 1
    assert _leads_to(last, Action.VIEW_ALL).index == 1


def test_an_escalated_call_wants_a_tick_before_approval() -> None:
    item = LONG.items[0]
    state = untouched(_page(LONG, 99)["blocks"])

    assert list(refused(details.require_read, item, state)) == [Input.READ_ALL]
    assert refused(details.require_read, item, {}) != {}
    details.require_read(item, chosen(state, Input.READ_ALL, "yes"))
    details.require_read(a_refund(), {})


DEMANDING = a_refund(requires_reason=(Verb.EDIT, Verb.REJECT))


def test_an_edit_brings_arguments_and_a_reason_if_it_needs_one() -> None:
    state = typed(untouched(VIEWS["edit"]["blocks"]), "field:1", "449.50")

    found = edit.submitted(a_refund(), typed(state, Input.REASON, "  half was broken "))

    assert found.args == REFUND | {"amount": 449.5}
    assert (found.reason, found.changed) == ("half was broken", True)
    assert [*refused(edit.submitted, DEMANDING, state)] == [Input.REASON]
    unchanged = untouched(VIEWS["edit"]["blocks"])
    assert not edit.submitted(DEMANDING, unchanged).changed


@pytest.mark.parametrize(
    ("preset", "text", "reason"),
    [
        ("duplicate", None, "Already done"),
        (None, " ask Kim ", "ask Kim"),
        ("duplicate", "see 412", "Already done: see 412"),
        ("unheard_of", None, ""),
    ],
)
def test_a_rejection_joins_the_chosen_reason_and_the_words(
    preset: str | None, text: str | None, reason: str
) -> None:
    state = typed(untouched(VIEWS["reject"]["blocks"]), Input.REASON, text)
    if preset:
        state = chosen(state, Input.PRESET, preset)

    assert call_form.submitted_reason(state, [a_refund()]) == reason
    if not reason:
        errors = refused(call_form.submitted_reason, state, [DEMANDING])
        assert [*errors] == [Input.REASON]


def test_a_choice_of_another_shape_is_refused() -> None:
    state: Any = {Input.PRESET: {Input.PRESET: {"selected_option": 7}}}

    errors = refused(call_form.submitted_reason, state, [a_refund()])

    assert list(errors) == [Input.PRESET]


@pytest.mark.parametrize(("text", "sent"), [(None, ""), ("  \n", ""), (" a ", "a")])
def test_an_answer_has_words(text: str | None, sent: str) -> None:
    state = typed(untouched(VIEWS["respond_in_batch"]["blocks"]), Input.MESSAGE, text)

    if sent:
        assert call_form.required_text(state, Input.MESSAGE, "Write.") == sent
    else:
        errors = refused(call_form.required_text, state, Input.MESSAGE, "Write.")
        assert errors == {Input.MESSAGE: "Write."}


def test_a_finding_is_chosen_and_its_note_may_be_left_out() -> None:
    doubt = in_state(a_refund(), ItemState.IN_DOUBT)
    form: Any = call_form.reconcile_form(frame(an_approval(doubt)), 0)
    state = untouched(form["blocks"])
    errors = refused(call_form.submitted_finding, typed(state, Input.NOTE, "seen"))
    found = call_form.submitted_finding(chosen(state, Input.FINDING, Finding.SKIP))
    assert [*errors] == [Input.FINDING]
    assert found == Reconcile(finding=Finding.SKIP)


def _button(view: Any, action: Action) -> Any:
    return next(each for each in objects(view) if each.get("action_id") == action)
