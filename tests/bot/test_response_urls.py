"""A card is replaced by the response URL of a click, and never shows what is not so."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.limits import RATES, UPDATE, Rate
from keyturn.bot.web import RateLimited, Slack, SlackNoResponse
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.keys import RESPONSE_URL_MS
from keyturn.gateway.store.posted_messages import USES
from keyturn.sandbox import responses
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.messages import remove
from keyturn.sandbox.response_urls import LIFE_S, POSTS, ResponseUrl, ResponseUrls
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, TEAM, Stack, has_button, says
from tests.conftest import eventually
from tests.service.harness import BEN


def updates(stack: Stack) -> int:
    return [call.method for call in stack.sandbox.calls].count(UPDATE)


async def clicked(
    stack: Stack, action: Action = Action.APPROVE, thread: str = "t1"
) -> Verdict:
    """Let Ana click on the card of a new call."""
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
    monkeypatch.setattr(ResponseUrls, "use", refusal)
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
        (ResponseUrls, "use", _late),
        (ResponseUrls, "use", _used),
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
            broken.setattr(ResponseUrls, "use", _late)
            await stack.card(await clicked(stack), is_settled)
        assert updates(stack) == 1

        verdict = await clicked(stack, thread="t2")

        await stack.card(verdict, is_settled)
        assert updates(stack) == 1


async def test_a_url_that_leads_elsewhere_is_asked_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    async def respond(_slack: Slack, url: str, _body: object) -> None:
        asked.append(url)

    async with stack.running():
        verdict = await clicked(stack, Action.REJECT)
        ana = stack.actor("U0ANA")
        await ana.wait_for_view()
        place = await stack.drawn(verdict)
        at, urls = (place.channel, place.ts), stack.store.response_urls

        async def is_kept() -> bool:
            return bool(await urls.take(stack.keys, *at))

        await eventually(is_kept)
        # Who can write to the store must not learn what cards show.
        await urls.keep(stack.keys, *at, "http://203.0.113.1/response/1")
        monkeypatch.setattr(Slack, "respond", respond)
        await ana.submit({"reason": "no receipt"})

        await stack.card(verdict, says("no receipt"))
        assert (asked, updates(stack)) == ([], 1)


async def test_a_url_is_good_for_less_than_slack_takes(stack: Stack) -> None:
    urls, at = stack.store.response_urls, ("C1", "1.000001")
    await urls.keep(stack.keys, *at, "https://hooks.slack.com/actions/a b")
    key = stack.keys.response_url(*at)

    found = [await urls.take(stack.keys, *at) for _ in range(POSTS)]

    url = "https://hooks.slack.com/actions/a b"
    assert found == [url] * USES + [""]
    assert USES < POSTS
    assert RESPONSE_URL_MS < LIFE_S * 1000
    await urls.keep(stack.keys, *at, url)
    left = await stack.store.conn.command("PTTL", key)
    assert isinstance(left, int)
    assert 0 < left <= RESPONSE_URL_MS
    await urls.forget(stack.keys, *at)
    assert await urls.take(stack.keys, *at) == ""


@pytest.mark.parametrize(
    ("api_url", "url", "is_own"),
    [
        ("https://slack.com/api/", "https://hooks.slack.com/actions/T/1/x", True),
        ("https://slack-gov.com/api/", "https://hooks.slack-gov.com/a", True),
        ("http://127.0.0.1:80/api/", "http://127.0.0.1:80/response/1", True),
        ("https://slack.com/api/", "https://hooks.slack.com.evil.example/a", False),
        ("https://slack.com/api/", "https://evilslack.com/a", False),
        ("https://slack.com/api/", "https://slack.com@evil.example/a", False),
        ("https://slack.com/api/", "http://hooks.slack.com/actions/T/1/x", False),
        ("https://slack.com/api/", "", False),
    ],
)
async def test_a_url_of_slack_is_told_by_its_host(
    api_url: str, url: str, *, is_own: bool
) -> None:
    session: Any = None

    assert Slack("xoxb-1", api_url=api_url, session=session).is_own(url) is is_own


async def test_a_deleted_card_that_still_needs_people_is_posted_anew(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = responses.respond

    def gone(slack: FakeSlack, place: ResponseUrl, body: JsonObject) -> None:
        """Somebody deletes the card right before it is replaced."""
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
    """Let Ben change the arguments without a click on the card."""
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
