"""The Home tab lists what waits, oldest first, and opens it."""

from __future__ import annotations

from typing import Any

from bot.cards.home import home
from bot.ids import Action, unseal, verify
from gateway.approvals.lifecycle import ItemState
from tests.bot.readable import readable
from tests.bot.samples import (
    KEY,
    LATER,
    NOW,
    TEAM,
    a_refund,
    an_approval,
    an_item,
    settled,
)
from tests.bot.tame import objects


def _view(*queue: Any, now_ms: int = NOW) -> Any:
    return home(queue, key=KEY, team=TEAM, now_ms=now_ms)


def test_an_empty_queue_is_a_good_thing() -> None:
    assert readable(_view()["blocks"]) == (
        "# Waiting for you: 0\nm:Nothing waits for you. Enjoy the quiet.\n"
    )


def test_the_oldest_comes_first_and_names_what_it_is() -> None:
    new = an_approval(an_item({}, tool="ping"), id="ap_new", created_at_ms=NOW)
    old = an_approval(id="ap_old", created_at_ms=NOW - 1)

    shown = readable(_view(new, old)["blocks"])

    assert shown.index("Refund 899.00") < shown.index("ping")
    assert shown.startswith("# Waiting for you: 2\n")


def test_what_is_settled_or_late_is_not_listed() -> None:
    done = an_approval(settled(a_refund(), ItemState.EXECUTED))

    assert "Waiting for you: 0" in readable(_view(done)["blocks"])
    assert "Waiting for you: 0" in readable(
        _view(an_approval(), now_ms=LATER)["blocks"]
    )


def test_more_than_fits_is_counted() -> None:
    queue = [an_approval(id=f"ap_{n}") for n in range(25)]

    assert "5 more are not listed here." in readable(_view(*queue)["blocks"])


def test_a_row_opens_the_first_call_that_waits() -> None:
    approval = an_approval(
        settled(an_item({}), ItemState.REJECTED), an_item({}, index=1)
    )

    button = next(
        each for each in objects(_view(approval)) if each.get("type") == "button"
    )

    sealed = unseal(button["value"])
    assert sealed.index == 1
    assert verify(sealed, approval, key=KEY, team=TEAM, purpose=Action.VIEW_ALL)
