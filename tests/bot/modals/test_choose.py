"""The form with a box for each call is valid at any size and hides no call."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.cards.frame import TABLE_FROM
from keyturn.bot.ids import Action, Input
from keyturn.bot.modals import choose
from keyturn.bot.modals.choose import Choice, opened
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.submit.proposals import MAX_BATCH
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.cards.test_table import refunds
from tests.bot.samples import BEN, a_vote, an_approval, an_item, frame
from tests.bot.slack_state import refused

EDITED = Edit(args={"order_id": "1", "amount": 2}, reason="half")


def ticked(approval: Approval, *numbers: int, rest: str = "leave") -> dict[str, Any]:
    """Return what Slack sends when these calls are ticked."""
    state: dict[str, Any] = {
        Input.OTHERS.value: {
            Input.OTHERS.value: {"selected_option": {"value": rest}},
        }
    }
    for start in range(0, len(approval.items), 10):
        name = f"calls.{start // 10}"
        chosen = [
            {"value": f"{number - 1}"}
            for number in numbers
            if start < number <= start + 10
        ]
        state[name] = {name: {"selected_options": chosen}}
    return state


@pytest.mark.parametrize("count", [TABLE_FROM, 56, MAX_BATCH])
def test_the_forms_are_accepted_at_any_size(count: int) -> None:
    approval = refunds(count)
    edits = dict.fromkeys(range(count), EDITED)
    choice = opened(approval).with_(approve=tuple(range(count)), edits=edits)
    moved = approval.replacing(
        *(item.with_(state=ItemState.EXPIRED) for item in approval.items[:20])
    )

    assert (
        validate_modal(choose.confirmation(frame(moved), choice, is_again=True)) == []
    )
    assert validate_modal(choose.view(frame(approval), choice)) == []
    assert validate_modal(choose.confirmation(frame(approval), choice)) == []


def read(approval: Approval, state: Any, staged: Choice | None = None) -> Choice:
    """Return what a submitted form chooses."""
    staged = staged or opened(approval)
    return choose.submitted(staged.offered(approval), state, staged)


def test_what_is_ticked_is_approved_and_the_rest_is_as_the_form_says() -> None:
    approval = refunds(12)
    staged = opened(approval).with_(edits={0: EDITED, 5: EDITED})

    left = read(approval, ticked(approval, 1, 12), staged)
    gone = read(approval, ticked(approval, 1, 12, rest="reject"), staged)

    assert (left.approve, left.reject) == ((11,), ())
    assert (gone.approve, gone.reject) == ((11,), tuple(range(1, 11)))
    assert gone.edits == {0: EDITED}
    partition = gone.partition(approval, "no")
    assert partition[0] == Edit(args=EDITED.args, reason="half")
    assert partition[11] == Approve()
    assert partition[5] == Reject(reason="no")
    assert left.partition(approval, "")[5] is None


def test_boxes_keep_their_group_when_a_call_was_decided_meanwhile() -> None:
    approval = refunds(12)
    ended = approval.items[0].with_(state=ItemState.REJECTED)

    boxes, staged = ticked(approval, 10, 11), opened(approval)
    choice = read(approval.replacing(ended), boxes, staged)

    assert choice.approve == (9, 10)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": ItemState.REJECTED},
        {"action": an_item({"amount": 1}, index=4).action},
        {"changed_at_ms": 7},
        {"repeats_seen_ms": 7},
    ],
)
def test_a_choice_counts_as_its_card_showed(changes: dict[str, Any]) -> None:
    approval = refunds(12)
    choice = opened(approval).with_(
        approve=(3, 4), reject=(4, 5), edits={4: EDITED, 6: EDITED}
    )
    assert choice.is_of(approval)
    after = approval.replacing(approval.items[4].with_(**changes))

    left = choice.without_moved(after)

    assert not choice.is_of(after)
    assert [item.index for item in choice.moved(after)] == [4]
    assert (left.approve, left.reject, {*left.edits}) == ((3,), (5,), {6})
    assert left.partition(after, "no").get(4) is None
    offered = [item.index for item in choice.offered(after)]
    assert offered == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]


def test_a_vote_of_somebody_else_changes_no_choice() -> None:
    approval = refunds(12)
    item = approval.items[4]
    after = approval.replacing(item.with_(votes=(a_vote(item, BEN),)))

    assert opened(approval).is_of(after)


def test_boxes_that_slack_did_not_send_are_not_read_as_not_ticked() -> None:
    approval = refunds(12)
    state = ticked(approval, 1, rest="reject")
    del state["calls.1"]

    errors = refused(read, approval, state)

    assert "did not send all boxes" in errors[Input.OTHERS]


def odd_refunds() -> Approval:
    """Return twelve refunds of two causes; the tenth has a hundred times the amount."""
    items = [
        an_item(
            {"cause": ("late", "lost")[n % 2], "amount": 2000 if n == 9 else 20 + n},
            index=n,
            totals=("args.amount|eur",),
            description=f"Refund number {n + 1} " + "to the customer " * n,
        )
        for n in range(12)
    ]
    return an_approval(*items)


def boxes(approval: Approval, choice: Choice) -> dict[str, tuple[str, list[str]]]:
    """Return the heading and the ticked values of each group of boxes."""
    form: Any = choose.view(frame(approval), choice)
    assert validate_modal(form) == []
    return {
        block["block_id"]: (
            block["label"]["text"],
            [one["value"] for one in block["element"].get("initial_options", [])],
        )
        for block in form["blocks"]
        if block.get("block_id", "").startswith("calls.")
    }


def test_a_marked_call_is_first_whole_and_edited_from_its_row() -> None:
    approval = odd_refunds()
    form: Any = choose.view(frame(approval), opened(approval))
    row = next(one for one in form["blocks"] if one.get("block_id") == "choose.edit.9")
    rest = [f"{n}" for n in range(12) if n != 9]

    assert row["text"]["text"] == (
        f"10. Refund number 10 {'to the customer ' * 9}\n"
        "⚠️ amount is far from the others; the median is €25.50"
    )
    assert row["accessory"]["action_id"] == Action.CHOOSE_EDIT
    assert boxes(approval, opened(approval)) == {
        "calls.marked.0": ("Call 10", ["9"]),
        "calls.0": ("Calls 1-9, 11", rest[:10]),
        "calls.1": ("Call 12", rest[10:]),
    }
    # A box has room for 75 characters, so the whole text is above.
    assert f"12. Refund number 12 {'to the customer ' * 11}" in str(form["blocks"])


def test_calls_are_grouped_with_sums_and_their_ticks_are_kept() -> None:
    approval = odd_refunds()
    choice = opened(approval)
    state = {
        name: {name: {"selected_options": [{"value": one} for one in ticked[:2]]}}
        for name, (_, ticked) in boxes(approval, choice).items()
    }

    assert [*choose.orders(approval)] == [
        "As asked",
        "By cause",
        "By amount, largest first",
    ]
    grouped = choose.sorted_by(approval, 1, state, choice)
    sorted_ = choose.sorted_by(approval, 2, state, choice)

    assert boxes(approval, grouped) == {
        "calls.marked.0": ("Call 10", ["9"]),
        "calls.1.0": ("cause late · amount €150.00", ["0"]),
        "calls.1.1": ("cause lost · amount €2,127.00", ["1", "11"]),
    }
    assert sorted_.layout["calls.2.0"].calls == (11, 10, 8, 7, 6, 5, 4, 3, 2, 1)


def test_a_group_of_more_than_ten_calls_is_continued() -> None:
    layout = choose.layout_of([("late · amount €150.00", range(12))])

    assert [one.heading for one in layout.values()] == [
        "late · amount €150.00",
        "late · amount €150.00 (continued)",
    ]


def test_the_confirmation_names_the_marks_of_the_calls_as_edited() -> None:
    approval = odd_refunds()
    said = "Call 10: amount is far from the others; the median is €25.50."
    everything = opened(approval).with_(approve=tuple(range(12)))
    mended = opened(approval).with_(
        edits={9: Edit(args={"cause": "lost", "amount": 29}, reason="")}
    )
    spoilt = opened(approval).with_(
        edits={3: Edit(args={"cause": "lost", "amount": 2300}, reason="")}
    )

    assert said in str(choose.confirmation(frame(approval), everything))
    assert "far from" not in str(choose.confirmation(frame(approval), mended))
    assert "Call 4: amount" in str(choose.confirmation(frame(approval), spoilt))
