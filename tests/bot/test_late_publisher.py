"""A publisher that was paused for longer than its lease lives sends nothing more."""

from __future__ import annotations

import time

import aiohttp
import pytest

from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.limits import Limits
from twokey.bot.web import Slack
from twokey.gateway.errors import LeaseLost
from twokey.gateway.store.fences import holding


async def test_a_late_publisher_changes_no_card_and_posts_none(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        place = await stack.drawn(verdict)
    approval = await stack.approval(verdict)
    sent = len(stack.sandbox.calls)

    async with (
        aiohttp.ClientSession() as session,
        stack.store.threads.lease(stack.keys, "default", "", "slack") as lease,
    ):
        card_publisher = CardPublisher(
            slack=Slack(
                stack.sandbox.bot_token, api_url=stack.sandbox.api_url, session=session
            ),
            limits=Limits(time.monotonic),
            cards=stack.store.cards,
            keys=stack.keys,
            team=TEAM,
            seal_key=stack.config.seal_key,
        )
        lease.lost.set()
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.update_card(approval, place, now_ms=0)
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.post_card(approval, channel=CHANNEL, now_ms=0)

    assert len(stack.sandbox.calls) == sent
