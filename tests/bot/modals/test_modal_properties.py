"""Every modal keeps Slack's limits, and the details contain every byte of a call."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.cards.frame import TABLE_FROM
from keyturn.bot.cards.listing import boxes
from keyturn.bot.ids import PAGE, View, unseal, verify
from keyturn.bot.modals import call_form, choose, details, edit
from keyturn.bot.text import reveal
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.markup_audit import assert_tame, objects
from tests.bot.samples import KEY, TEAM, TWO, an_approval, an_item, frame
from tests.bot.strategies import approvals, arguments, moments, quick

_quick = quick(30)


def _check(view: Any) -> None:
    assert validate_modal(view) == []
    assert_tame(view)


@_quick
@given(approvals(most=2))
def test_every_deciding_modal_is_accepted_and_tame(approval: Approval) -> None:
    raised = approval.items[0].with_(
        tier=Tier.ESCALATE, reasons=("over",), requirement=TWO, votes=()
    )

    _check(edit.view(frame(approval), 0))
    _check(edit.view(frame(approval), 0, raised=raised, args={"other": True}))
    _check(call_form.rejection_form(frame(approval), 0))
    _check(call_form.response_form(frame(approval), 0))


@_quick
@given(st.lists(arguments, min_size=TABLE_FROM, max_size=12))
def test_the_form_for_many_calls_is_accepted_and_tame(values: list[Any]) -> None:
    calls = (an_item(args, index=index) for index, args in enumerate(values))
    approval = an_approval(*calls)
    edits = {0: Edit(args=values[1], reason="half")}

    _check(choose.view(frame(approval), choose.opened(approval).with_(edits=edits)))


@_quick
@given(approvals(most=3), moments)
def test_only_the_last_page_can_approve(approval: Approval, now_ms: int) -> None:
    item = approval.items[0]
    count = details.page_count(approval, 0)

    for number in range(1, count + 1):
        view: Any = details.view(frame(approval, now_ms=now_ms), 0, number)
        _check(view)
        sealed = unseal(view["private_metadata"])
        may = verify(sealed, approval, key=KEY, team=TEAM, purpose=View.DETAILS)
        can = item.is_pending and now_ms < approval.expires_at_ms
        assert may == (number == count and can and Verb.APPROVE in item.allow)
        assert may == ("submit" in view)
        if not may:
            assert sealed.page == number
            assert verify(sealed, approval, key=KEY, team=TEAM, purpose=PAGE)


@_quick
@given(arguments)
def test_every_character_of_the_arguments_is_on_some_page(args: Any) -> None:
    approval = an_approval(an_item(args), says="")
    shown = ""

    for number in range(1, details.page_count(approval, 0) + 1):
        view = details.view(frame(approval, now_ms=0), 0, number)
        shown += "".join(_boxed(view))

    item = approval.items[0]
    assert shown == "".join(map(reveal, boxes(item.tool, item.args, ())))


def _boxed(view: Any) -> list[str]:
    return [
        str(part["text"])
        for each in objects(view)
        if each.get("type") == "rich_text_preformatted"
        for part in each["elements"]
        if not re.fullmatch("⟦empty⟧", part["text"])
    ]
