"""A request without a valid recent signature is refused; repeats count once."""

from __future__ import annotations

import time

import aiohttp
import pytest

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.connection.connection import number, text
from tests.attacks.attacker import click_payload, trace, value_of
from tests.bot.bot_stack import Stack
from tests.bot.signed import interaction, post, signed_headers
from tests.lifetimes import listed


async def prepared(stack: Stack, action: Action = Action.APPROVE) -> Prepared:
    """Return a waiting call and the bytes of a click on it."""
    verdict = await stack.refund()
    card = await stack.card(verdict)
    value = value_of(stack, await stack.approval(verdict), action)
    return verdict, interaction(click_payload(card["ts"], action, value))


Prepared = tuple[Verdict, bytes]


def url_of(stack: Stack) -> str:
    assert stack.bot is not None
    return stack.bot.url


async def effects(stack: Stack, verdict: Verdict) -> tuple[int, int, int]:
    """Return the revision, the jobs and the number of authorizations of the call."""
    found = await trace(stack, verdict)
    return found.approval.rev, found.jobs, found.audit


async def test_a_replay_to_another_process_decides_nothing(
    stack: Stack,
) -> None:
    async with stack.running(), SlackBot(stack.config, stack.reviews) as other:
        verdict, body = await prepared(stack, Action.APPROVE)
        headers = signed_headers(stack.sandbox.signing_secret, body)
        await post(url_of(stack), headers, body)
        before = await effects(stack, verdict)

        elsewhere = await post(other.url, headers, body)

        assert (elsewhere[0], await effects(stack, verdict)) == (200, before)
    async with stack.running():
        assert (await post(url_of(stack), headers, body))[0] == 200
        assert await effects(stack, verdict) == before


async def test_a_requests_mark_outlives_the_request(stack: Stack) -> None:
    async with stack.running():
        _, body = await prepared(stack)
        # Slack's clock may be ahead: then the request counts for ten minutes.
        ahead = str(int(time.time()) + 299)  # noqa: TID251 - Slack's clock
        headers = signed_headers(stack.sandbox.signing_secret, body, timestamp=ahead)
        assert (await post(url_of(stack), headers, body))[0] == 200

        conn = stack.store.conn
        marks = [text(m) for m in listed(await conn.command("KEYS", "tk:*:seen:*"))]

        left = [number(await conn.command("PTTL", mark)) for mark in marks]
        assert min(left) > 600_000


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "DELETE"])
async def test_no_other_method_decides(stack: Stack, method: str) -> None:
    async with stack.running():
        verdict, body = await prepared(stack)
        before = await trace(stack, verdict)
        headers = signed_headers(stack.sandbox.signing_secret, body)

        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, url_of(stack), data=body, headers=headers
            ) as response,
        ):
            status = response.status

        assert status in {404, 405}
        assert await trace(stack, verdict) == before
