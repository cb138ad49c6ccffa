"""A click goes to its listener; Bolt gets the rest, and an answer comes in any case."""

from __future__ import annotations

import json
import logging
from typing import Any, cast
from urllib.parse import quote

import pytest
from slack_bolt.app.async_app import AsyncApp

from tests.attacks.attacker import click_payload, trace, value_of
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.signed import FORM, interaction, post, post_signed, signed_headers
from twokey.bot import app
from twokey.bot.bolt import bolt_app
from twokey.bot.ids import Action
from twokey.bot.listeners.router import Router
from twokey.bot.store_nonces import StoreNonces
from twokey.gateway.config import SlackMode
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.states import ItemState


async def _broken(*_: object, **__: object) -> object:
    raise ZeroDivisionError


@pytest.mark.parametrize("mode", SlackMode)
async def test_clicks_and_forms_do_not_need_bolt(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, mode: SlackMode
) -> None:
    async with stack.running(mode=mode):
        approved, rejected = await stack.refund("t1"), await stack.refund("t2")
        cards = [str((await stack.card(v))["ts"]) for v in (approved, rejected)]
        monkeypatch.setattr(AsyncApp, "async_dispatch", _broken)
        ana = stack.actor("U0ANA")

        await ana.click(CHANNEL, cards[0], Action.APPROVE)
        await ana.click(CHANNEL, cards[1], Action.REJECT)
        await ana.wait_for_view()
        await ana.submit({"reason": "no receipt"})

        states = [
            (await stack.approval(v)).items[0].state for v in (approved, rejected)
        ]
        assert states == [ItemState.AUTHORIZED, ItemState.REJECTED]


async def test_what_breaks_in_bolt_itself_is_no_server_error(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = stack.sandbox.signing_secret
    async with stack.running() as bot:
        monkeypatch.setattr(AsyncApp, "async_dispatch", _broken)

        status = await post_signed(bot.url, secret, b"command=%2Fapprovals&text=list")

    assert status == 400
    assert "bot.dispatch_failed" in caplog.text


@pytest.mark.parametrize("kind", ["view_closed", "shortcut", "block_suggestion", ""])
async def test_another_kind_of_interaction_goes_to_bolt(
    stack: Stack, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    secret = stack.sandbox.signing_secret
    async with stack.running() as bot:
        status = await post_signed(bot.url, secret, interaction({"type": kind}))

    # Nobody listens; Bolt's own answer.
    assert status == 404
    assert "Unhandled request" in caplog.text


async def test_a_button_that_only_bolt_has_a_listener_for_goes_to_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = list[Any]()

    def remembering(*args: Any) -> Any:
        apps.append(bolt_app(*args))
        return apps[-1]

    monkeypatch.setattr(app, "bolt_app", remembering)
    asked = list[str]()
    async with stack.running() as bot:
        _put_first(apps[0], asked)
        for name in ("their_button", Action.APPROVE):
            payload = click_payload("1.000001", name, "junk")

            await post_signed(
                bot.url, stack.sandbox.signing_secret, interaction(payload)
            )

    # Ours never passes Bolt.
    assert asked == ["their_button"]


def _put_first(theirs: Any, asked: list[str]) -> None:
    async def listener(ack: Any, action: dict[str, str]) -> None:
        asked.append(action["action_id"])
        await ack()

    theirs.action("their_button")(listener)
    theirs.action(Action.APPROVE.value)(listener)
    listeners = theirs._async_listeners
    listeners[:0] = [listeners.pop() for _ in "ab"]


@pytest.mark.parametrize(
    ("found", "put"),
    [
        (b"payload=", b"payload=%7B%7D&payload="),
        (b"%7D%5D%7D", b"%7D%5D%7D&payload=%7B%7D"),
        (b"%7B", b"%7"),
        (b"U0ANA", b"U0ANA%"),
        (b"U0ANA", b"U0\xffANA"),
        (b"U0ANA", b"U0%FFANA"),
    ],
)
async def test_a_signed_click_that_two_readers_may_differ_on_decides_nothing(
    stack: Stack, caplog: pytest.LogCaptureFixture, found: bytes, put: bytes
) -> None:
    async with stack.running() as bot:
        verdict = await stack.refund()
        card = await stack.card(verdict)
        value = value_of(stack, await stack.approval(verdict), Action.APPROVE)
        body = interaction(click_payload(card["ts"], Action.APPROVE, value))
        before = await trace(stack, verdict)

        spoiled = body.replace(found, put, 1)
        assert spoiled != body
        status = await post_signed(bot.url, stack.sandbox.signing_secret, spoiled)

        assert (status, await trace(stack, verdict)) == (400, before)
    assert value not in caplog.text


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


@pytest.mark.parametrize(
    "payload", [{"type": "block_actions"}, {"type": "view_submission", "view": []}]
)
async def test_an_interaction_of_another_shape_is_logged_and_acknowledged(
    stack: Stack, caplog: pytest.LogCaptureFixture, payload: dict[str, object]
) -> None:
    async with stack.running() as bot:
        with caplog.at_level(logging.WARNING):
            status = await post_signed(
                bot.url, stack.sandbox.signing_secret, interaction(payload)
            )

    assert status == 200
    assert "listener.bad_payload" in caplog.text


def test_a_button_has_one_listener() -> None:
    router = Router(cast("Any", None), cast("Any", None))

    async def listener(*_: object) -> None:
        return None

    router.on_action(Action.APPROVE, listener)
    with pytest.raises(ValueError, match="'approve' has two listeners"):
        router.on_action(Action.APPROVE, listener)


@pytest.mark.parametrize("mode", SlackMode)
async def test_a_click_that_may_be_a_replay_decides_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, mode: SlackMode
) -> None:
    async def gone(*_: object) -> bool:
        raise StoreUnavailable("gone")

    async with stack.running(mode=mode):
        verdict = await stack.refund()
        card = await stack.card(verdict)
        before = await trace(stack, verdict)
        # The store is back by the time that the listener runs.
        monkeypatch.setattr(StoreNonces, "is_first", gone)

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.told("U0ANA", "cannot keep anything right now")
        assert await trace(stack, verdict) == before
