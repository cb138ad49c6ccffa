"""A stored installation is replaced and removed only by those who have read it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.oauth.token_rotation.async_rotator import AsyncTokenRotator

from keyturn.bot.manifest import SCOPES
from keyturn.bot.workspaces import Installations
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.store.store import Store
from tests.workspaces_world import world


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
async def installations(tmp_path: Path, store: Store) -> AsyncGenerator[Installations]:
    async with world(tmp_path, store, "A") as opened, outgoing() as session:
        yield Installations(store, opened.settings(), {"T0A"}, session)


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

    async def renewed(*_given: object, **_named: object) -> Installation:
        # Somebody installs the app again, before Slack's answer arrives.
        await installations.async_save(installation("xoxb-new"))
        return installation("xoxb-renewed")

    monkeypatch.setattr(AsyncTokenRotator, "perform_token_rotation", renewed)
    await installations.renew("T0A")

    assert await token_of(installations) == "xoxb-new"
