"""A bot whose token is gone says so, keeps its work, and recovers."""

from __future__ import annotations

import logging

import aiohttp
import pytest

from tests.bot.bot_house import CHANNEL, House
from tests.conftest import eventually
from twokey.bot.bot_token import CHECKED_S, REJECTED_S
from twokey.bot.ids import Action
from twokey.gateway.config import SlackMode
from twokey.gateway.protocol.states import ItemState


async def readiness(house: House) -> tuple[int, list[str]]:
    assert house.bot
    url = house.bot.url.replace("/slack/events", "/readyz")
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        body = await response.json()
        return response.status, body.get("problems", [])


async def is_not_ready(house: House) -> bool:
    return (await readiness(house))[0] == 503


@pytest.mark.parametrize("mode", [SlackMode.HTTP, SlackMode.SOCKET])
@pytest.mark.parametrize("event", ["tokens_revoked", "app_uninstalled"])
async def test_an_event_that_the_token_is_gone_turns_readiness_off(
    house: House, event: str, mode: SlackMode, caplog: pytest.LogCaptureFixture
) -> None:
    house.mode = mode
    house.sandbox.workspace.events = (event,)
    async with house.running(mode=mode):
        assert await readiness(house) == (200, [])

        with caplog.at_level(logging.ERROR):
            await house.sandbox.control.uninstall_app()
            await house.bot_is_quiet()

        status, problems = await readiness(house)
        assert status == 503
        assert "does not accept SLACK_BOT_TOKEN any more ('token_revoked')" in str(
            problems
        )
        assert f"bot.token_lost event={event}" in caplog.text


async def test_a_token_that_stopped_working_is_noticed_without_any_event(
    house: House,
) -> None:
    house.sandbox.workspace.events = ()
    async with house.running():
        await house.sandbox.control.revoke_bot_token()
        assert (await readiness(house))[0] == 200

        house.sandbox.control.advance(CHECKED_S)

        assert (await readiness(house))[0] == 503


async def test_readiness_asks_slack_once_a_minute_however_often_it_is_asked(
    house: House,
) -> None:
    async with house.running():
        house.sandbox.control.advance(CHECKED_S)
        before = [call.method for call in house.sandbox.calls].count("auth.test")
        for _ in range(5):
            await readiness(house)

        after = [call.method for call in house.sandbox.calls].count("auth.test")
        assert after - before == 1


async def test_an_event_about_another_token_changes_nothing(house: House) -> None:
    async with house.running():
        house.sandbox.control.restore_bot_token()
        await house.sandbox.control.announce("tokens_revoked", tokens={"oauth": ["U1"]})
        await house.bot_is_quiet()

        assert await readiness(house) == (200, [])


async def test_a_slack_that_is_away_is_no_lost_token(house: House) -> None:
    async with house.running():
        house.sandbox.control.advance(CHECKED_S)
        house.sandbox.faults.plan("http_500", "auth.test")

        assert await readiness(house) == (200, [])


async def test_what_happens_without_a_token_is_told_when_it_works_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.bot.delivery.card_updater.BROKEN_S", 0.1)
    async with house.running():
        verdict = await house.refund()
        card = await house.card(verdict)
        await house.bot_is_quiet()
        await house.sandbox.control.uninstall_app()

        await house.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        later = await house.refund(thread="t2")
        await eventually(lambda: is_not_ready(house))
        house.sandbox.control.restore_bot_token()
        house.sandbox.control.advance(REJECTED_S)

        assert (await house.card(later))["ts"]
        assert (await readiness(house))[0] == 200
        await house.told("U0ANA", "Slack did not say who you are")
        assert (await house.approval(verdict)).items[0].state is ItemState.PENDING
