"""A publisher that was paused for longer than its lease lives sends nothing more."""

from __future__ import annotations

import time

import aiohttp
import pytest

from tests.bot.bot_house import CHANNEL, TEAM, House
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.limits import Limits
from twokey.bot.web import Slack
from twokey.gateway.errors import LeaseLost
from twokey.gateway.store.fences import holding


async def test_a_late_publisher_changes_no_card_and_posts_none(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        await house.card(verdict)
    approval = await house.approval(verdict)
    place = await house.store.cards.place(house.keys, approval.id)
    assert place
    sent = len(house.sandbox.calls)

    async with (
        aiohttp.ClientSession() as session,
        house.store.threads.lease(house.keys, "default", "", "slack") as lease,
    ):
        card_publisher = CardPublisher(
            slack=Slack(
                house.sandbox.bot_token, api_url=house.sandbox.api_url, session=session
            ),
            limits=Limits(time.monotonic),
            cards=house.store.cards,
            team=TEAM,
            seal_key=house.config.seal_key,
        )
        lease.lost.set()
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.update_card(house.keys, approval, place, now_ms=0)
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.post_card(
                house.keys, approval, channel=CHANNEL, now_ms=0
            )

    assert len(house.sandbox.calls) == sent
