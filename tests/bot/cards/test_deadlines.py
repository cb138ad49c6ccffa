"""A card shows when its calls expire, also when they expire at different times."""

from __future__ import annotations

import re

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.home import home
from keyturn.bot.cards.queue import page_of
from keyturn.bot.cards.reminders import (
    channel_escalation,
    newly_needed,
    reminder,
    undelivered,
    waits_again,
)
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.approvals.timing import with_end
from keyturn.gateway.approvals.waiting_changes import extend
from tests.bot.readable import readable
from tests.bot.samples import KEY, LATER, NOW, TEAM, an_approval, an_item, frame

SOON = NOW + 600_000


def mixed(calls: int) -> Approval:
    """Return a card whose third call expires before the others."""
    items = [an_item(index=n) for n in range(calls)]
    approval = an_approval(*items)
    return with_end(approval, items[2].with_(expires_at_ms=SOON))


def drawn(message: Message) -> str:
    return readable(message.blocks)


def at(ms: int) -> str:
    return f"<!date^{ms // 1000}^"


@pytest.mark.parametrize(("calls", "others"), [(4, "calls 1-2, 4"), (9, "1-2, 4-9")])
def test_a_card_names_the_calls_that_expire_before_the_others(
    calls: int, others: str
) -> None:
    head = drawn(card(frame(mixed(calls))))

    assert "call 3" in head.partition(at(SOON))[2].partition(at(LATER))[0]
    assert others in head.partition(at(LATER))[2].splitlines()[0]


def test_a_card_whose_calls_expire_together_names_one_time() -> None:
    head = drawn(card(frame(an_approval(*(an_item(index=n) for n in range(4))))))

    assert head.count(at(LATER)) == 1
    assert "calls 1-4" not in head


def test_a_message_about_such_a_card_says_when_the_first_call_expires() -> None:
    for message in (reminder(mixed(4)), newly_needed(mixed(4), but=())):
        text = drawn(message)
        assert f"The first of its calls expires {at(SOON)}" in text
        assert "nothing runs" not in text


def test_a_call_that_waits_again_is_told_with_its_own_end() -> None:
    items = [an_item(index=n) for n in range(2)]
    why = Revocation(reason="The policy changed.", at_ms=NOW)
    asked_anew = items[1].with_(expires_at_ms=LATER + 1000, revoked=why)
    approval = with_end(an_approval(*items), asked_anew)

    text = drawn(waits_again(approval, ""))

    assert f"It expires {at(LATER + 1000)}" in text


def test_only_the_call_that_is_over_loses_its_buttons() -> None:
    over = frame(mixed(4), now_ms=SOON)

    text = drawn(card(over))

    assert "The time is over" not in text
    assert text.count("[*Approve]") == 3
    assert text.count("The time to decide ended") == 1


def test_no_other_text_says_that_all_calls_end_with_the_first_one() -> None:
    approval = mixed(4)
    messages = (
        channel_escalation(approval, ""),
        channel_escalation(approval, "C0APPROVALS"),
        undelivered(approval, channel="C0APPROVALS", why="is_archived", is_posted=True),
    )

    for message in messages:
        assert re.search(r"The first of its calls .*<!date", drawn(message))
    assert "4 calls (process_refund), the first until 2026" in card_fallback(approval)
    queue = home(page_of([approval], now_ms=NOW), key=KEY, team=TEAM, now_ms=NOW)
    assert f"the first expires {at(SOON)}" in str(queue["blocks"])


def test_more_time_for_the_others_is_not_told_of_the_first_call() -> None:
    approval = mixed(4)
    third = approval.items[2].with_(latest_at_ms=SOON)
    ana = Reviewer(
        team=TEAM,
        user="U0ANA",
        usergroups=frozenset({"S0SUPPORT"}),
        account=AccountKind.MEMBER,
    )

    change = extend(approval.replacing(third), ana, NOW)

    assert isinstance(change, Change)
    note = thread_note(change.events[0], change.approval)
    assert note is not None
    assert "it expires" not in drawn(note)
    assert f"The first call expires {at(SOON)}" in drawn(note)
    assert note.text.endswith("the first call expires 2026-11-21 10:10 UTC.")
