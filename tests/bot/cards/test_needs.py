"""Cards and forms name the required approvers, and give a reason for this call."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.channel_messages import freeze_message
from keyturn.bot.cards.refs import actor, people, places, who
from keyturn.bot.cards.states import needs, without_tier
from keyturn.bot.listeners.reading import line
from keyturn.bot.modals import call_form, edit
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.policy.evaluate import FiredRule
from keyturn.gateway.protocol.records import Person, Tier
from tests.bot.readable import readable
from tests.bot.readable import view as as_text
from tests.bot.samples import ANA, LISTED, SENIOR, TWO, a_refund, an_approval, frame


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


def _person(user: str) -> Person:
    return Person(team="T1", user=user, name="*name*")


def test_a_person_whose_id_is_not_slacks_is_somebody() -> None:
    assert who(_person("<!channel>")).text == "`somebody`"
    assert who(ANA).text == "<@U0ANA>"
    many = [_person(f"U{n}") for n in range(8)]
    assert people(many).text.endswith("<@U4> and 3 more")


def test_channels_are_named_in_one_sentence() -> None:
    long = f"#{'x' * 60}"
    assert places(["C0GENERAL", "#équipe"]).text == "<#C0GENERAL> and #équipe"
    assert places(["#a*b", "<!channel>"]).text == "another channel and another channel"
    assert places([long]).text == f"#{'x' * 38}…"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("T0/U0ANA", "<@U0ANA>"),
        ("cli/root", "`cli/root`"),
        ("cli", "`cli`"),
        ("cli/<!channel>", "`somebody`"),
        ("", "`somebody`"),
    ],
)
def test_an_actor_is_a_mention_a_plain_name_or_somebody(name: str, shown: str) -> None:
    assert actor(name).text == shown


def test_everything_is_lifted_by_a_word_of_its_own() -> None:
    event = Event(name=EventName.FREEZE_SET, tenant="acme", actor="cli/root")

    message = freeze_message(event)

    assert readable(message.blocks) == (
        "m:🧊 *Frozen* by `cli/root`.\nEverything\n"
        "~ Nothing starts, not even approved calls. To end the freeze, write: "
        "/approvals unfreeze everything\n"
    )
