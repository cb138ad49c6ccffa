"""Bots on one store know each other's keys, and report one that does not match."""

from __future__ import annotations

import aiohttp
import pytest

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action, seal
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.tampering import click_with
from tests.conftest import eventually

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))


async def test_another_key_is_refused_and_shown_by_readyz(stack: Stack) -> None:
    stack.store.processes.life_ms = 2000
    async with stack.running(seal_keys=(ONE,)) as bot:
        foreign = SlackBot(stack.config_with(seal_keys=(TWO,)), stack.reviews)
        with pytest.raises(SettingsError, match="give both the same KEYTURN_SECRET"):
            await foreign.__aenter__()

        async with (
            aiohttp.ClientSession() as session,
            session.get(bot.url.replace("/slack/events", "/readyz")) as answer,
        ):
            status, body = answer.status, await answer.json()

    assert (status, body["ready"]) == (200, True)
    assert "was refused: The bot" in body["others"][0]
    assert ONE.hex() not in str(body)


async def is_authorized(stack: Stack, verdict: Verdict) -> bool:
    return (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED


@pytest.mark.parametrize("key", [ONE, THREE], ids=["the old key", "a foreign key"])
async def test_only_a_seal_of_the_old_key_counts(stack: Stack, key: bytes) -> None:
    async with stack.running(seal_keys=(TWO, ONE)):
        verdict = await stack.refund()
        card, approval = await stack.card(verdict), await stack.approval(verdict)
        value = seal(approval, 0, key=key, team="T0SANDBOX", purpose=Action.APPROVE)

        await click_with(stack, card, Action.APPROVE, value)

        if key == ONE:
            await eventually(lambda: is_authorized(stack, verdict))
        else:
            await stack.told("U0ANA", "the key of Keyturn has changed")
            assert not await is_authorized(stack, verdict)


async def test_a_card_of_a_lost_key_is_redrawn_and_decided(stack: Stack) -> None:
    async with stack.running(seal_keys=(ONE,)):
        verdict = await stack.refund()
        before = await stack.card(verdict)

    async with stack.running(seal_keys=(TWO,)):
        card = await stack.card(verdict, lambda m: m["blocks"] != before["blocks"])
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await eventually(lambda: is_authorized(stack, verdict))

    assert card["ts"] == before["ts"]
