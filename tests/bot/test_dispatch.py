"""Bolt takes what Slack sent to its listener, and a response comes in any case."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from slack_bolt.app.async_app import AsyncApp

from keyturn.bot.ids import Action
from keyturn.bot.ingress import StoreNonces
from keyturn.gateway.config import SlackMode
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from tests.attacks.attacker import click_payload, trace, value_of
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.signed import FORM, interaction, post, post_signed, signed_headers
from tests.panics import apanic, failing


async def _broken(*_: object, **__: object) -> object:
    raise ZeroDivisionError


BREAKS = [_broken, apanic]


@pytest.mark.parametrize("breaks", BREAKS)
async def test_what_breaks_in_bolt_itself_is_no_server_error(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    breaks: object,
) -> None:
    secret = stack.sandbox.signing_secret
    async with stack.running() as bot:
        monkeypatch.setattr(AsyncApp, "async_dispatch", breaks)

        status = await post_signed(bot.url, secret, b"command=%2Fapprovals&text=list")

    assert status == 400
    assert "bot.unreadable" in caplog.text


UNREADABLE = [
    b"payload=junk",
    b"payload=",
    b"payload=%7B%7",
    b"payload=%7B%zz%7D",
    b"payload=%5B1%5D",
    b"payload=1",
    b"payload=" + b"[" * 100_000,
    b"payload=[" + b"9" * 5000 + b"]",
    b"{",
    interaction({"type": "block_actions", "actions": [{"a": 1}]}),
    interaction({"type": "block_actions", "actions": [{"action_id": 1}]}),
    interaction({"type": "view_submission", "view": 1}),
]


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_signed_body_that_cannot_be_read_is_refused_and_ends_nothing(
    stack: Stack, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    secret = stack.sandbox.signing_secret
    async with stack.running() as bot:
        status = await post_signed(bot.url, secret, body)
        after = await post_signed(
            bot.url, secret, interaction(click_payload("1.1", "other", "junk"))
        )

    assert (status, after) == (400, 200)
    assert "bot.unreadable" in caplog.text or "listener" in caplog.text
    assert "junk" not in caplog.text


async def test_a_click_counts_in_every_way_of_encoding_it(stack: Stack) -> None:
    async with stack.running() as bot:
        verdict = await stack.refund()
        card = await stack.card(verdict)
        value = value_of(stack, await stack.approval(verdict), Action.APPROVE)
        payload = click_payload(card["ts"], Action.APPROVE, value)
        payload["user"]["name"] = "Ana 100% = é\n_+&"
        text = json.dumps(payload, ensure_ascii=False)
        body = f"payload={quote(text, safe='=')}&more=1".encode()
        headers = signed_headers(stack.sandbox.signing_secret, body)

        answer = await post(bot.url, headers | {"Content-Type": FORM}, body)

        assert answer == (200, "")
        [item] = (await stack.approval(verdict)).items
        assert item.state is ItemState.AUTHORIZED


@pytest.mark.parametrize("mode", SlackMode)
async def test_a_click_that_may_be_a_replay_decides_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, mode: SlackMode
) -> None:
    async with stack.running(mode=mode):
        verdict = await stack.refund()
        card = await stack.card(verdict)
        before = await trace(stack, verdict)
        # The store is back by the time that the listener runs.
        failing(monkeypatch, StoreNonces, "is_first", StoreUnavailable("gone"))

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.told("U0ANA", "cannot keep anything right now")
        assert await trace(stack, verdict) == before


async def test_slack_can_verify_the_request_url(live: Stack) -> None:
    assert await live.sandbox.control.verify_url()
