"""Cards and forms name the required approvers, and give a reason for this call."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.states import needs, without_tier
from keyturn.bot.listeners.reading import line
from keyturn.bot.modals import call_form, edit
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.policy.raise_rules import FiredRule
from keyturn.gateway.protocol.records import Tier
from tests.bot.readable import view as as_text
from tests.bot.samples import LISTED, SENIOR, TWO, a_refund, an_approval, frame


def _needing(approvals: int) -> Item:
    return a_refund(requirement=Requirement(approvals=approvals, of=(SENIOR,)))


@pytest.mark.parametrize(
    ("approvals", "said"), [(1, "*Needs one person*"), (12, "*Needs 12 people*")]
)
def test_the_requirement_says_how_many_are_needed(approvals: int, said: str) -> None:
    assert needs(_needing(approvals)).text == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "over 1000."),
        ({"needs": ("senior", "U0ANA")}, "over 1000."),
        ({"to": Tier.APPROVE, "needs": ("one_sen",)}, "over 1000."),
        (
            {"because": "x: y", "problem": "args.n is gone"},
            "the rule 'x: y' could not be checked, because args.n is gone.",
        ),
    ],
)
def test_a_reason_omits_its_tier(changes: dict[str, object], said: str) -> None:
    rule = FiredRule(to=Tier.ESCALATE, because="over 1000", when="true")

    assert without_tier(rule.with_(**changes).reason) == said


@pytest.mark.parametrize(
    "form", [edit.view, call_form.rejection_form, call_form.response_form]
)
def test_a_form_gives_no_reason_that_each_call_of_the_tool_has(form: object) -> None:
    usual = a_refund(reasons=(LISTED,))
    reasons = (LISTED, "Raised to escalate: a refund over 1000.")
    raised = _needing(2).with_(tier=Tier.ESCALATE, reasons=reasons)

    plain, told = (
        as_text(form(frame(an_approval(one)), 0))  # type: ignore[operator]  # one of three builders
        for one in (usual, raised)
    )

    assert "to approve" not in plain
    assert LISTED not in plain + told
    assert "Needs 2 people: a refund over 1000." in told


def test_a_line_of_the_command_names_what_is_more_than_usual() -> None:
    usual, escalated = a_refund(), a_refund(tier=Tier.ESCALATE, index=1)

    said = line(an_approval(usual, escalated.with_(requirement=TWO)))

    assert "*Needs 2 people*. `" in said
    assert "to approve" not in line(an_approval(usual))
