"""The Home tab lists pending calls, the most urgent first, and opens them."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.cards.home import home, manual
from keyturn.bot.cards.queue import (
    HomeFilter,
    Page,
    decidable_in_row,
    mark_of,
    page_of,
    whole_line,
)
from keyturn.bot.ids import Action, unseal, verify
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Inquiry, TriageResult, short_id
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.sandbox.blockkit import validate_home
from tests.bot.markup_audit import objects
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    KEY,
    LATER,
    NOW,
    TEAM,
    TWO,
    a_refund,
    an_approval,
    an_item,
    edited,
    in_state,
)
from tests.bot.snapshots import CARD_TEXTS, assert_all_same

DAY_MS = 24 * 3_600_000


def _view(*queue: Any, now_ms: int = NOW, **more: Any) -> Any:
    page = page_of(queue)
    return home(page, key=KEY, team=TEAM, now_ms=now_ms, **more)


def _order(*queue: Approval, now_ms: int = NOW) -> list[str]:
    shown = readable(_view(*queue, now_ms=now_ms)["blocks"])
    ids = (one.id for one in queue)
    return sorted(ids, key=lambda one: shown.index(f"`{short_id(one)}`"))


def _scored(score: int, id: str, **changes: Any) -> Approval:  # noqa: A002 - as the field
    triage = TriageResult(score=score)
    return an_approval(a_refund(triage=triage), id=id, **changes)


DONE = in_state(a_refund(triage=TriageResult(score=99)), ItemState.REJECTED)
LAST = LATER + 15 * 60_000
QUEUES: list[tuple[Approval, ...]] = [
    # The score of triage decides among equals, and age among those.
    (
        _scored(90, "ap_high", created_at_ms=NOW + 2),
        _scored(10, "ap_low"),
        an_approval(id="ap_old", created_at_ms=1),
        an_approval(id="ap_new"),
    ),
    # The deadline decides before any score.
    (
        an_approval(id="ap_called", escalated_at_ms=NOW, expires_at_ms=LAST),
        _scored(0, "ap_soon"),
        _scored(100, "ap_fresh", expires_at_ms=LAST),
    ),
    # A long call that is past its half comes behind a short one.
    (
        an_approval(id="ap_short"),
        an_approval(
            id="ap_long", created_at_ms=NOW - DAY_MS, expires_at_ms=NOW + DAY_MS
        ),
    ),
    # Only the calls that wait count.
    (
        _scored(1, "ap_one"),
        an_approval(DONE, an_item({}, index=1), id="ap_batch"),
    ),
]


@pytest.mark.parametrize("queue", QUEUES)
def test_the_most_urgent_call_comes_first(queue: tuple[Approval, ...]) -> None:
    assert _order(*reversed(queue)) == [one.id for one in queue]


def test_the_tab_lists_what_waits() -> None:
    bare = an_approval(an_item({"statement": "SELECT 1"}, tool="run_query"), id="ap_a")
    long = an_approval(an_item({"body": "two\nlines"}, tool="note"), id="ap_c")
    mail = an_item({"n": 2}, index=1, tool="mail")
    frozen = an_approval(
        an_item({"n": 1}, is_frozen=True, expires_at_ms=LATER - 1), mail, id="ap_f"
    )
    asked: Any = {"questions": [{"question": "Which street?", "type": "text"}]}
    asking = an_approval(an_item(asked, tool="ask_user", is_question=True))
    empty = page_of([])
    views = {
        "empty": _view(an_approval(in_state(a_refund(), ItemState.EXECUTED))),
        "one call, a line shows another whole, and a third one does not fit": _view(
            an_approval(id="ap_b"), bare, long
        ),
        "calls of a card that expire apart, one of them frozen": _view(frozen),
        "a question, which is no request of a person": _view(asking),
        "late by another clock than that of the store": _view(
            an_approval(), now_ms=LATER
        ),
        "one of two calls waits for another person alone": home(
            page_of([frozen], calls={"ap_f": 1}),
            key=KEY,
            team=TEAM,
            now_ms=NOW,
        ),
        "not looked at whole, and own calls": home(
            empty, own=[bare], key=KEY, team=TEAM, now_ms=NOW, looked_at=2000
        ),
    }
    texts = {name: readable(one["blocks"]) for name, one in views.items()}

    assert_all_same(CARD_TEXTS, "home", texts)


def test_what_does_not_fit_is_on_another_page() -> None:
    queue = [an_approval(id=f"ap_{n}") for n in range(25)]

    first = readable(_view(*queue)["blocks"])
    past = mark_of(an_approval(id="ap_99", expires_at_ms=NOW * 2))
    page = page_of(queue, chosen=HomeFilter(after=past))
    last = readable(home(page, key=KEY, team=TEAM, now_ms=NOW)["blocks"])

    assert "# Waiting for you: 25\n" in first
    assert "1 to 20 of 25" in first
    assert "Less urgent" in first
    assert "More urgent" not in first
    assert "21 to 25 of 25" in last, "a page that is gone is the last one"
    assert "More urgent" in last


def listed(page: Page) -> list[str]:
    return [one.id for one in page.approvals]


def test_the_next_page_begins_behind_the_last_row_whatever_came_and_went() -> None:
    """By a number, decided rows would pull others past the person unseen."""
    queue = [
        an_approval(id=f"ap_{n:02}", expires_at_ms=NOW + 1000 + n) for n in range(60)
    ]
    first = page_of(queue)
    assert first.next
    assert first.before is None
    decided = queue[7:]
    urgent = [an_approval(id=f"ap_x{n}", expires_at_ms=NOW + 1) for n in range(3)]

    less = page_of(decided, chosen=HomeFilter(after=first.next))
    more = page_of(urgent + queue, chosen=HomeFilter(after=first.next))

    assert listed(less) == listed(more) == [one.id for one in queue[20:40]]
    assert more.before is not None
    back = page_of(urgent + queue, chosen=HomeFilter(after=more.before))
    assert listed(back) == [one.id for one in queue[:20]]
    assert back.before == ""
    assert less.next
    last = page_of(decided, chosen=HomeFilter(after=less.next))
    assert listed(last) == [one.id for one in queue[40:]]
    assert last.next is None


@pytest.mark.parametrize("mark", ["x", "5", "{}", "[]", '["a"]', "[true,1]", "[1e999]"])
def test_a_mark_of_nobodys_leads_to_some_page(mark: str) -> None:
    queue = [an_approval(id=f"ap_{n}") for n in range(25)]

    page = page_of(queue, chosen=HomeFilter(after=mark))

    assert page.start in {0, 20}


def test_a_row_opens_the_first_call_that_waits() -> None:
    approval = an_approval(
        in_state(an_item({}), ItemState.REJECTED), an_item({}, index=1)
    )

    button = next(
        each
        for each in objects(_view(approval))
        if each.get("action_id") == Action.VIEW_ALL
    )

    sealed = unseal(button["value"])
    assert sealed.index == 1
    assert verify(sealed, approval, key=KEY, team=TEAM, purpose=Action.VIEW_ALL)


def test_the_fullest_tab_has_no_more_blocks_than_slack_takes() -> None:
    singles = [
        an_approval(an_item({}, tool=f"tool_{n}"), id=f"ap_{n}") for n in range(25)
    ]
    pairs = [
        an_approval(an_item({}, tool=f"tool_{n % 10}"), id=f"ap_{n}") for n in range(25)
    ]
    for queue in (singles, pairs):
        page = page_of(queue, chosen=HomeFilter(tier="approve"))
        view = home(
            page,
            key=KEY,
            team=TEAM,
            now_ms=NOW,
            chosen=HomeFilter(tier="approve"),
            is_complete=False,
            looked_at=2000,
            own=queue,
            manual=manual("C0APPROVALS", "/approvals"),
        )

        assert validate_home(view) == []
        assert len(page.approvals) == 20


def test_a_flood_of_one_tool_pushes_no_more_urgent_call_off_the_first_page() -> None:
    flood = [
        an_approval(an_item({}, tool="flood"), id=f"ap_{n:03}", expires_at_ms=LATER)
        for n in range(100)
    ]
    urgent = an_approval(
        an_item({}, tool="odd"), id="ap_urgent", expires_at_ms=LATER - 1
    )
    first = an_approval(
        an_item({}, tool="flood"), id="ap_first", expires_at_ms=LATER - 2
    )

    page = page_of([*flood, urgent, first])

    assert [group.tool for group in page.groups] == ["flood", "odd"]
    assert page.groups[0].count == 101


@pytest.mark.parametrize("sign", "·∙⋅•‧・･◦")
def test_a_value_that_imitates_an_argument_has_its_own_line(sign: str) -> None:
    assert whole_line(an_item({"amount": 5, "to": "bob, 12.50 (März)"}))
    assert not whole_line(an_item({"amount": 9000, "to": f"bob {sign} amount 5"}))


def test_calls_that_now_have_to_be_opened_are_not_counted_as_decided_together() -> None:
    queue = [an_approval(a_refund(id=f"ap_{n}.0"), id=f"ap_{n}") for n in range(3)]
    done = Precedent(
        call="ap_other.0", state=ItemState.EXECUTED, agent="support-agent", at_ms=NOW
    )
    again = a_refund(id="ap_1.0", past=Past(precedents=(done,)))

    page = page_of(queue).showing({"ap_1": an_approval(again, id="ap_1")})

    assert page.groups[0].together == ("ap_0.0", "ap_2.0")
    assert page.groups[0].count == 3


def _ids_of_buttons(*queue: Approval, now_ms: int) -> dict[str, str]:
    """Return the value of each button by the ids that a click on it names."""
    blocks = _view(*queue, now_ms=now_ms)["blocks"]
    buttons = [
        (str(block["block_id"]), one)
        for block in blocks
        for one in [*block.get("elements", []), block.get("accessory", {})]
        if one.get("type") == "button" and "value" in one
    ]
    return {f"{where} {one['action_id']}": one["value"] for where, one in buttons}


def test_a_click_counts_although_the_tab_was_drawn_anew() -> None:
    same = [an_approval(id=f"ap_{n}", created_at_ms=NOW + n) for n in range(3)]
    urgent = an_approval(
        an_item({}, tool="ping"), id="ap_urgent", expires_at_ms=LATER - 1
    )

    before = _ids_of_buttons(*same, now_ms=NOW)
    after = _ids_of_buttons(*same, urgent, now_ms=NOW + 60_000)

    assert len(before) == 7, "Review 3 together, and two in each row"
    assert before.items() <= after.items()


def test_a_click_on_a_call_that_changed_meanwhile_is_not_one_on_what_is_shown() -> None:
    old = an_approval(rev=1)

    before = _ids_of_buttons(old, now_ms=NOW)
    after = _ids_of_buttons(old.with_(rev=2), now_ms=NOW)

    assert before
    assert not before.keys() & after.keys()


BEFORE = Precedent(call="ap_1.0", state=ItemState.EXECUTED, agent="a", by=(ANA,))
ASKED = Inquiry(by=ANA, text="Is it?", at_ms=NOW)


def _row(approval: Approval) -> str:
    queue = page_of([approval])
    return readable(home(queue, key=KEY, team=TEAM, now_ms=NOW)["blocks"])


OPENED = {
    "several people": an_approval(a_refund(tier=Tier.ESCALATE, requirement=TWO)),
    "escalated": an_approval(a_refund(tier=Tier.ESCALATE)),
    "denied now": an_approval(a_refund(tier=Tier.DENY)),
    "only to be rejected": an_approval(a_refund(allow=(Verb.REJECT,))),
    "a reason": an_approval(a_refund(requires_reason=(Verb.APPROVE,))),
    "long": an_approval(an_item({"body": "word " * 400})),
    "edited": an_approval(edited(a_refund(), {"amount": 1})),
    "read differently": an_approval(a_refund(original_args={})),
    "done before": an_approval(a_refund(past=Past(precedents=(BEFORE,)))),
    "taken back": an_approval(a_refund(revoked=Revocation(reason="x", at_ms=1))),
    "raised by a model": an_approval(
        a_refund(triage=TriageResult(raised_to=Tier.APPROVE, rationale="odd"))
    ),
    "odd characters": an_approval(an_item({"to": "a\u202eb"})),
    "several calls": an_approval(a_refund(), a_refund(index=1)),
    "questions": an_approval(a_refund(), inquiries=(ASKED,)),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_call_whose_card_says_more_is_opened_first(name: str) -> None:
    text = _row(OPENED[name])

    assert "[Approve]" not in text
    assert "Decide in Full details" in text
    assert decidable_in_row(OPENED[name]) is None
