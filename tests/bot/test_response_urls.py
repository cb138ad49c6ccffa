"""A card is replaced by the response URL of a click, and never shows a false state."""

from __future__ import annotations

import time
from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.limits import RATES, UPDATE, Rate
from keyturn.bot.web import RateLimited, ResponseUrls, Slack, SlackNoResponse
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox import responses
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.messages import remove
from keyturn.sandbox.response_urls import LIFE_S, POSTS, ResponseUrl
from keyturn.sandbox.response_urls import ResponseUrls as IssuedUrls
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, TEAM, Stack, has_button, says
from tests.conftest import eventually
from tests.service.harness import BEN


def updates(stack: Stack) -> int:
    return [call.method for call in stack.sandbox.calls].count(UPDATE)


async def clicked(
    stack: Stack, action: Action = Action.APPROVE, thread: str = "t1"
) -> Verdict:
    """Click on the card of a new call as Ana."""
    verdict = await stack.refund(thread)
    card = await stack.card(verdict)
    await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), action)
    return verdict


def is_settled(card: JsonObject) -> bool:
    return not has_button(card, Action.APPROVE)


async def test_a_card_that_a_click_settled_takes_nothing_of_the_limit(
    each_stack: Stack,
) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await clicked(stack)

        card = await stack.card(verdict, is_settled)
        await stack.drawn(verdict)
        await stack.execute(verdict)
        place = await stack.drawn(verdict)

        assert (place.ts, updates(stack)) == (card["ts"], 0)
        assert len(await stack.cards(verdict)) == 1


async def test_a_form_settles_the_card_by_the_click_that_opened_it(
    stack: Stack,
) -> None:
    async with stack.running():
        verdict = await clicked(stack, Action.REJECT)
        ana = stack.actor("U0ANA")
        await ana.wait_for_view()
        await ana.submit({"reason": "no receipt"})

        await stack.card(verdict, says("no receipt"))

        assert updates(stack) == 0


def _late(*_: object) -> None:
    raise ApiError("expired_url")


def _used(*_: object) -> None:
    raise ApiError("used_url")


@pytest.mark.parametrize("refusal", [_late, _used])
async def test_who_clicked_is_answered_also_where_the_url_is_used_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    monkeypatch.setattr(IssuedUrls, "use", refusal)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)

        await stack.actor("U0DAN").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        assert await stack.told("U0DAN", "You asked for this")


@pytest.mark.parametrize(
    "error", [RateLimited("response_url", 30.0), SlackNoResponse("response_url", "")]
)
async def test_who_clicked_is_answered_also_where_the_url_gets_no_answer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def respond(*_: object) -> None:
        raise error

    monkeypatch.setattr(Slack, "respond", respond)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)

        await stack.actor("U0DAN").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        assert await stack.told("U0DAN", "You asked for this")


@pytest.mark.parametrize(
    ("place", "name", "trouble"),
    [
        (IssuedUrls, "use", _late),
        (IssuedUrls, "use", _used),
        # Refused with status 200.
        (responses, "respond", _late),
    ],
)
async def test_what_slack_does_not_take_is_updated_instead(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: object,
    name: str,
    trouble: object,
) -> None:
    monkeypatch.setattr(place, name, trouble)
    async with stack.running():
        verdict = await clicked(stack)

        await stack.card(verdict, is_settled)
        await stack.drawn(verdict)

        assert updates(stack) == 1
    assert "card.not_replaced" in caplog.text
    assert "/response/" not in caplog.text


async def test_a_post_that_is_lost_on_its_way_back_shows_the_same_once_more(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = Slack.respond

    async def lost(slack: Slack, *given: Any) -> None:
        await respond(slack, *given)
        await respond(slack, "http://127.0.0.1:9/nobody", {})

    async with stack.running():
        monkeypatch.setattr(Slack, "respond", lost)
        verdict = await clicked(stack)

        await stack.card(verdict, is_settled)
        await stack.drawn(verdict)

        assert updates(stack) == 1
        assert len(await stack.cards(verdict)) == 1


async def test_while_the_limit_is_used_up_a_click_still_shows(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RATES, UPDATE, Rate(per_minute=0.001, burst=1))
    async with stack.running():
        with monkeypatch.context() as broken:
            broken.setattr(IssuedUrls, "use", _late)
            await stack.card(await clicked(stack), is_settled)
        assert updates(stack) == 1

        verdict = await clicked(stack, thread="t2")

        await stack.card(verdict, is_settled)
        assert updates(stack) == 1


def test_a_url_is_used_less_often_and_for_less_time_than_slack_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls, at, url = ResponseUrls(), ("C1", "1.000001"), "https://hooks.slack.com/a b"
    urls.keep(*at, url)
    assert urls.has(*at)
    assert [urls.take(*at) for _ in range(POSTS)] == [url] * (POSTS - 1) + [""]
    assert ResponseUrls.LIFE_S < LIFE_S

    urls.keep(*at, url)
    later_s = time.monotonic() + ResponseUrls.LIFE_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert urls.take(*at) == ""

    urls.keep(*at, url)
    urls.forget(*at)
    assert urls.take(*at) == ""


async def test_another_process_than_the_one_that_was_clicked_updates_the_card(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: object) -> None:
        """Forget it."""

    monkeypatch.setattr(ResponseUrls, "keep", keep)
    async with stack.running():
        verdict = await clicked(stack)

        await stack.card(verdict, is_settled)
        await stack.drawn(verdict)

        assert updates(stack) == 1


async def test_a_deleted_card_that_still_needs_people_is_posted_anew(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = responses.respond

    def gone(slack: FakeSlack, place: ResponseUrl, body: JsonObject) -> None:
        """A person deletes the card right before it is replaced."""
        monkeypatch.undo()
        slack.workspace.drop_message(slack.workspace.messages[CHANNEL][card["ts"]])
        respond(slack, place, body)

    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card: Any = await stack.card(verdict)
        await stack.drawn(verdict)
        monkeypatch.setattr(responses, "respond", gone)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        anew = await stack.card(verdict, says("1 of 2"))

        assert anew["ts"] != card["ts"]
        assert (await stack.drawn(verdict)).ts == anew["ts"]
        await stack.actor("U0CHLOE").click(CHANNEL, str(anew["ts"]), Action.APPROVE)
        await stack.card(verdict, is_settled)


async def test_a_deleted_card_with_replies_that_needs_people_is_posted_anew(
    stack: Stack,
) -> None:
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)
        ts = str(card["ts"])
        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
        await stack.card(verdict, says("1 of 2"))
        await stack.drawn(verdict)
        await eventually(lambda: has_notes(stack, card))
        slack = stack.sandbox.control.slack
        assert remove(slack, slack.workspace.messages[CHANNEL][ts]), "has replies"
        await edited_by_ben(stack, verdict)

        anew = await stack.card(verdict, lambda m: m["ts"] != ts)

        await stack.actor("U0CHLOE").click(CHANNEL, str(anew["ts"]), Action.APPROVE)
        await stack.card(verdict, is_settled)


async def has_notes(stack: Stack, card: JsonObject) -> bool:
    return bool(await stack.notes(card))


async def edited_by_ben(stack: Stack, verdict: Verdict) -> None:
    """Change the arguments as Ben without a click on the card."""
    approval = await stack.approval(verdict)
    click = click_on(approval)
    ben = BEN.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
    outcome = await stack.reviews.decide(click, Edit(args={"amount": 1}), ben)
    assert outcome.kind == "voted"


async def test_whether_a_settled_card_is_there_is_not_asked(stack: Stack) -> None:
    async with stack.running():
        verdict = await clicked(stack)
        await stack.card(verdict, is_settled)
        await stack.drawn(verdict)

        assert "chat.getPermalink" not in [one.method for one in stack.sandbox.calls]


@pytest.mark.parametrize("trouble", ["http_500", "rate_limit"])
async def test_a_card_stays_replaced_where_slack_does_not_say_that_it_is_there(
    stack: Stack, trouble: str
) -> None:
    stack.sandbox.faults.plan(trouble, "chat.getPermalink")
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        again = await stack.card(verdict, says("1 of 2"))
        await stack.drawn(verdict)

        assert (again["ts"], updates(stack)) == (card["ts"], 0)
