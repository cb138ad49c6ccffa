"""A card says when its calls expire, also when they do not expire together."""

from __future__ import annotations

import pytest

from tests.bot.readable import readable
from tests.bot.samples import LATER, NOW, an_approval, an_item, frame
from twokey.bot.blocks import Message
from twokey.bot.cards.approval import card
from twokey.bot.cards.reminders import newly_needed, reminder, waits_again
from twokey.bot.cards.states import LATE
from twokey.gateway.approvals.authorization import Revocation
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.timing import with_end

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

    assert LATE not in text
    assert text.count("[*Approve]") == 3
    assert text.count("The time to decide ended") == 1
