"""A card whose calls have all ended shows the results in three lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyturn.bot.cards.approval import ENDED, card, is_finished
from keyturn.bot.cards.quality_checks import spot_checks
from keyturn.bot.ids import Action
from keyturn.bot.modals.details import pages
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Observation, SpotCheck
from keyturn.gateway.protocol.records import Finding, ItemState, Result
from tests.bot.cards.test_table import refunds
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    in_state,
)

S = ItemState
ARGUMENT = "arrived broken"
FAILED = Result(ok=False, summary="payment provider: 503")


def lines(approval: Approval) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps(card(frame(approval)).blocks))
    return found


def shown(approval: Approval) -> str:
    return readable(card(frame(approval)).blocks)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_call_that_ended_takes_three_lines(state: ItemState) -> None:
    approval = an_approval(in_state(a_refund(), state))

    found = lines(approval)

    assert [one["type"] for one in found] == ["header", "section", "context"]
    assert found[1]["accessory"]["action_id"] == Action.VIEW_ALL
    assert ARGUMENT not in json.dumps(found)
    every = pages(approval, approval.items[0])
    assert any(ARGUMENT in part.text for page in every for part in page)


@pytest.mark.parametrize("state", sorted(set(ItemState) - ENDED))
def test_a_call_that_needs_somebody_or_may_still_run_is_shown_whole(
    state: ItemState,
) -> None:
    approval = an_approval(in_state(a_refund(), state))

    assert not is_finished(approval)
    assert ARGUMENT in shown(approval)


def test_a_batch_stays_open_as_long_as_one_of_its_calls_does() -> None:
    done = in_state(a_refund(), S.EXECUTED)
    doubt = in_state(a_refund(index=1), S.IN_DOUBT)

    assert not is_finished(an_approval(done, doubt))


def test_a_call_that_a_spot_check_asks_about_is_shown_whole() -> None:
    check = SpotCheck(asked_at_ms=1)
    approval = an_approval(in_state(a_refund(spot_check=check), S.EXECUTED))

    assert ARGUMENT in shown(approval)


@pytest.mark.parametrize(("room", "asked"), [(50, 2), (4, 1), (2, 0), (-3, 0)])
def test_a_card_asks_about_as_many_calls_as_it_has_blocks_for(
    room: int, asked: int
) -> None:
    check = SpotCheck(asked_at_ms=1)
    ran = [in_state(a_refund(index=n, spot_check=check), S.EXECUTED) for n in range(3)]

    blocks = spot_checks(frame(an_approval(*ran)), room)

    assert len(blocks) <= max(room, 0)
    assert [block["type"] for block in blocks].count("actions") == asked


def test_a_failure_is_never_called_done() -> None:
    text = shown(an_approval(in_state(a_refund(), S.FAILED, result=FAILED)))

    assert text.startswith("# ❌")
    assert "but it failed" in text
    assert "Tool says: payment provider: 503" in text
    assert "done" not in text


def test_an_edit_says_what_it_changed_and_why() -> None:
    item = edited(a_refund(), {**a_refund().args, "amount": 449.5}, by=ANA, reason="x")

    alone = shown(an_approval(in_state(item, S.EXECUTED)))

    assert "| Changed: amount 899 → 449.5\n| Why:     x\n" in alone


def test_a_longer_edit_is_found_in_view_all() -> None:
    args = {**a_refund().args, "amount": 1, "reason": "amount  2 → 3"}
    item = in_state(edited(a_refund(), args, by=BEN), S.EXECUTED)
    approval = an_approval(item)

    assert "see Full details" in shown(approval)
    titles = [part.title for page in pages(approval, item) for part in page]
    assert "What the edit changed" in titles


@pytest.mark.parametrize(
    "said",
    [
        "no funds   Checked by Ana: it took effect",
        "no funds\n+--\nm:Checked by <@U0BEN>: it took effect",
        "no funds\nReason: all is well",
    ],
)
def test_no_text_of_a_tool_passes_for_a_line_of_the_card(said: str) -> None:
    result = FAILED.model_copy(update={"summary": said})
    plain = an_approval(in_state(a_refund(), S.FAILED, result=FAILED))

    blocks = card(frame(an_approval(in_state(a_refund(), S.FAILED, result=result))))

    kinds = [block["type"] for block in blocks.blocks]
    assert kinds == [block["type"] for block in card(frame(plain)).blocks]
    (words,) = (b for b in blocks.blocks if b["type"] == "rich_text")
    assert "rich_text_section" not in str(words)
    others = [block for block in blocks.blocks if block is not words]
    assert "no funds" not in str(others)
    (box,) = readable([words]).split("+--\n")[1:2]
    assert box.count("\n") == 1
    assert box.startswith("| Tool says: no funds")


def test_what_people_found_of_a_doubt_stays_on_the_card() -> None:
    item = a_refund()
    seen = Observation(finding=Finding.SKIP, vote=a_vote(item, BEN), fence=0)
    item = in_state(a_refund(observations=(seen,)), S.FAILED)

    assert "Checked by <@U0BEN>: leave it" in shown(an_approval(item))


def test_a_report_against_what_people_found_stays_on_the_card() -> None:
    item = in_state(a_refund(finding=Finding.EXECUTED, late_result=FAILED), S.EXECUTED)

    text = shown(an_approval(item))

    assert "reported later that it failed, unlike what people found" in text


def test_a_batch_counts_its_calls_and_names_failures_first() -> None:
    items = [in_state(one, S.EXECUTED) for one in refunds(56).items]
    items[3] = in_state(items[3], S.FAILED)
    items[9] = in_state(items[9], S.REJECTED)
    approval = an_approval(*items)

    text = shown(approval)

    assert "m:*failed*" not in text
    assert "1 *failed*, 54 done, 1 rejected." in text
    assert "❌ 4. " in text
    assert "✅" not in text
    assert len(lines(approval)) == 4


def test_a_few_calls_have_a_line_each_the_failed_one_first() -> None:
    approval = an_approval(
        in_state(a_refund(), S.EXECUTED),
        in_state(an_item({"n": 2}, index=1, tool="ping"), S.FAILED),
    )

    text = shown(approval)

    assert text.index("❌ 2. ping") < text.index("✅ 1. Refund")
    assert text.startswith("# ❌ 2 calls: process_refund, ping")


@pytest.mark.parametrize("state", [S.REJECTED, S.EXPIRED])
def test_an_edit_that_did_not_count_names_who_made_it(state: ItemState) -> None:
    item = edited(a_refund(), {**a_refund().args, "amount": 449.5}, by=ANA)
    item = item.with_(votes=(a_vote(item, ANA),))

    text = shown(an_approval(in_state(item, state, by=ANA)))

    assert "Edited by <@U0ANA>.\n+--\n| Changed: amount 899 → 449.5\n" in text


@pytest.mark.parametrize("count", [2, 20])
def test_a_report_against_what_people_found_stays_on_the_card_of_a_batch(
    count: int,
) -> None:
    done = [in_state(one, S.EXECUTED) for one in refunds(count).items]
    done[1] = done[1].with_(finding=Finding.EXECUTED, late_result=FAILED)

    text = shown(an_approval(*done))

    (line,) = (one for one in text.splitlines() if "unlike what people found" in one)
    assert line.startswith("| ✅ 2. ")
