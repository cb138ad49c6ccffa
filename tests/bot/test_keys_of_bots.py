"""Bots on one store know each other's keys, and report one that does not match."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from slack_sdk.oauth.installation_store import Installation

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action, seal
from keyturn.bot.manifest import SCOPES
from keyturn.bot.web import Slack
from keyturn.bot.workspaces import Installations
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.store import Store
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.tampering import click_with
from tests.conftest import eventually
from tests.workspaces_world import World, refreshes, world

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))


async def test_another_key_is_refused_and_shown_by_readyz(stack: Stack) -> None:
    stack.store.processes.life_ms = 2000
    async with stack.running(seal_keys=(ONE,)):
        foreign = SlackBot(stack.config_with(seal_keys=(TWO,)), stack.reviews)
        with pytest.raises(SettingsError, match="give both the same KEYTURN_SECRET"):
            await foreign.__aenter__()

        status, body = await stack.readiness()

    assert (status, body["ready"]) == (200, True)
    assert "was refused: The bot" in body["others"][0]
    assert ONE.hex() not in str(body)


async def is_authorized(stack: Stack, verdict: Verdict) -> bool:
    return (await stack.item(verdict)).state is ItemState.AUTHORIZED


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


def installation(token: str) -> Installation:
    return Installation(
        user_id="U0ANA",
        team_id="T0A",
        bot_token=token,
        bot_scopes=[*SCOPES],
        bot_user_id="U0KEYTURN",
        bot_refresh_token=f"xoxe-1-{token}",
        bot_token_expires_in=60,
    )


@pytest.fixture
async def side(tmp_path: Path, store: Store) -> AsyncGenerator[World]:
    async with world(tmp_path, store, "A") as opened:
        yield opened


@pytest.fixture
async def installations(side: World) -> AsyncGenerator[Installations]:
    async with outgoing() as session:
        yield Installations(side.store, side.settings(), {"T0A"}, session)


async def token_of(installations: Installations) -> str | None:
    found = (await installations.all()).get("T0A")
    return found.bot_token if found else None


async def test_a_late_removal_spares_a_newer_one(installations: Installations) -> None:
    old, new = installation("xoxb-old"), installation("xoxb-new")
    await installations.async_save(old)
    await installations.async_save(new)

    await installations.remove("T0A", old, "token_revoked")
    assert await token_of(installations) == "xoxb-new"

    await installations.remove("T0A", new, "token_revoked")
    assert await token_of(installations) is None


async def test_a_late_renewal_replaces_no_newer_installation(
    installations: Installations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await installations.async_save(installation("xoxb-old"))

    async def renewed(*_given: object, **_named: object) -> dict[str, object]:
        # Somebody installs the app again, before Slack's answer arrives.
        await installations.async_save(installation("xoxb-new"))
        tokens = {"access_token": "xoxb-renewed", "refresh_token": "xoxe-1-new"}
        return {**tokens, "expires_in": 43_200}

    monkeypatch.setattr(Slack, "renew", renewed)
    await installations.renew("T0A")

    assert await token_of(installations) == "xoxb-new"


@pytest.mark.parametrize(
    "fault", ["http_500", "rate_limit", "no_json", "malformed", "reset"]
)
async def test_a_failure_that_passes_is_no_refusal_of_a_renewal(
    side: World, installations: Installations, fault: str
) -> None:
    """A refusal asks a person to install the app again; a failure must not."""
    await installations.async_save(installation("xoxb-old"))
    side.slack.control.fault(fault, "oauth.v2.access")

    await installations.renew("T0A")

    assert refreshes(side) == 1
    assert installations.refused == {}
    assert await token_of(installations) == "xoxb-old"
