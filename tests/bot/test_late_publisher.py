"""A publisher that was paused for longer than its lease lives sends nothing more."""

from __future__ import annotations

import time

import aiohttp
import pytest

from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.limits import Limits
from keyturn.bot.web import Slack
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.store.scripts.fences import holding
from tests.bot.bot_stack import CHANNEL, ME, Stack


async def test_a_late_publisher_changes_no_card_and_posts_none(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        place = await stack.drawn(verdict)
    approval = await stack.approval(verdict)
    sent = len(stack.sandbox.calls)

    async with (
        aiohttp.ClientSession() as session,
        stack.store.threads.lease(stack.keys, "", "slack") as lease,
    ):
        card_publisher = CardPublisher(
            Slack(
                stack.sandbox.bot_token, api_url=stack.sandbox.api_url, session=session
            ),
            Limits(time.monotonic),
            stack.store,
            stack.config,
            ME,
        )
        lease.end()
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.update_card(approval, place, now_ms=0)
        with holding(lease), pytest.raises(LeaseLost):
            await card_publisher.post_card(approval, channel=CHANNEL, now_ms=0)

    assert len(stack.sandbox.calls) == sent
