"""An open Home tab shows changes by itself, within Slack's limits."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.listeners import home_tab
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.reviewers.bot_records import HomeTab
from tests.bot.bot_stack import Stack
from tests.bot.listeners.test_review_together import home, home_of, text_of, waiting
from tests.conftest import eventually


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for changes all the time."""
    monkeypatch.setattr(home_tab, "PAUSE_S", 0.02)


def published(stack: Stack, user: str) -> list[Any]:
    return [
        call
        for call in stack.sandbox.calls
        if call.method == "views.publish" and call.arguments["user_id"] == user
    ]


async def shown(stack: Stack, user: str, words: str) -> None:
    """Wait until the tab of a person shows these words, without any use of it."""
    await stack.actor(user).wait_for(lambda state: words in home_of(state) or None)


async def test_an_open_tab_shows_what_comes_and_what_goes(live: Stack) -> None:
    await home(live, shows="Waiting for you: 0")

    (verdict,) = await waiting(live, 1)
    await shown(live, "U0ANA", "Waiting for you: 1")
    item = await live.item(verdict)
    await live.agents.withdraw_items(frozenset({item.id}))

    await shown(live, "U0ANA", "Waiting for you: 0")
    assert "Live until" in text_of(await live.actor("U0ANA").home())


async def test_an_open_tab_shows_a_freeze_until_it_ends(stack: Stack) -> None:
    refunds = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
    async with stack.running():
        await waiting(stack, 1)
        await home(stack, shows="Waiting for you: 1")

        await stack.reviews.freezes.freeze(refunds, "T0/U0BEN", "wrong amounts")
        await shown(stack, "U0ANA", "*frozen*")

        await stack.reviews.freezes.unfreeze(refunds, "T0/U0BEN")
        tab = stack.actor("U0ANA")
        await tab.wait_for(lambda state: "*frozen*" not in home_of(state) or None)


@pytest.mark.parametrize("fault", ["rate_limit", "http_500", "no_json"])
async def test_a_refused_tab_is_published_later(live: Stack, fault: str) -> None:
    await live.actor("U0BEN").open_home()
    await shown(live, "U0BEN", "Waiting for you: 0")
    # As many attempts as for the waiting person.
    live.sandbox.faults.plan(fault, "views.publish", calls=3)

    await live.actor("U0ANA").open_home()

    await shown(live, "U0ANA", "Waiting for you: 0")


async def test_nobody_is_published_a_tab_that_would_show_the_same(live: Stack) -> None:
    await home(live, shows="Waiting for you: 0")
    await home(live, "U0CHLOE", shows="Waiting for you: 0")
    before = len(published(live, "U0CHLOE"))

    await waiting(live, 1)
    await shown(live, "U0ANA", "Waiting for you: 1")
    await waiting(live, 2)
    await shown(live, "U0ANA", "Waiting for you: 2")

    assert len(published(live, "U0CHLOE")) == before, "she decides no refunds"


async def test_who_has_not_used_their_tab_lately_is_left_alone(live: Stack) -> None:
    await home(live, shows="Waiting for you: 0")
    await home(live, "U0BEN", shows="Waiting for you: 0")
    key = live.keys.home_tabs
    body = HomeTab(used_at_ms=1).model_dump_json()
    await live.store.conn.command("HSET", key, "U0BEN", body)
    before = len(published(live, "U0BEN"))

    await waiting(live, 1)
    await shown(live, "U0ANA", "Waiting for you: 1")

    assert len(published(live, "U0BEN")) == before
    found = await live.store.home_tabs.open_tabs(live.keys, 10)
    assert found == ["U0ANA"]


async def test_a_filter_holds_while_the_tab_is_kept_up_to_date(live: Stack) -> None:
    await waiting(live, 2)
    await live.submit(("send_email", {"to": "a@b.example"}), thread="mail")
    ana = await home(live, shows="Waiting for you: 3")

    await ana.act_in_home(Action.FILTER_TOOL, chosen="send_email")
    await shown(live, "U0ANA", "1 of 3 fit the filter.")
    await live.submit(("send_email", {"to": "c@d.example"}), thread="mail2")

    await shown(live, "U0ANA", "2 of 4 fit the filter.")
    assert "Refund" not in text_of(await ana.home()).split("How approvals work")[0]
    await ana.act_in_home(Action.FILTER_TOOL, chosen="*")
    await shown(live, "U0ANA", "Refund")


async def test_a_tab_published_by_another_is_made_again(live: Stack) -> None:
    ana = await home(live, shows="Waiting for you: 0")
    tabs = live.store.home_tabs

    async def is_noted() -> bool:
        _, now, _ = await tabs.tab(live.keys, "U0ANA")
        return bool(now.view_hash)

    await eventually(is_noted)
    _, now, _ = await tabs.tab(live.keys, "U0ANA")
    old = now.with_(view_hash="0.old", content="")
    await tabs.shown(live.keys, "U0ANA", old)

    await waiting(live, 1)

    await shown(live, "U0ANA", "Waiting for you: 1")
    assert await ana.notices() == []


async def test_a_long_queue_is_shown_in_pages(stack: Stack) -> None:
    await waiting(stack, 21)
    async with stack.running():
        ana = await home(stack, shows="1 to 20 of 21")

        await ana.act_in_home(Action.HOME_NEXT)

        await shown(stack, "U0ANA", "21 to 21 of 21")
