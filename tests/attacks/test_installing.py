"""Nobody installs the app through another person's browser, or twice by one page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.streams import audit_entries
from tests.workspaces_world import STATE, Browser, World, refreshes, state_in, world

pytestmark = [
    pytest.mark.slow,
    # The SDK itself uses aiohttp's BasicAuth, which aiohttp 4 will drop.
    pytest.mark.filterwarnings("ignore:BasicAuth:DeprecationWarning"),
]

BODY = '{"user_id": "U0ANA", "bot_token": "xoxb-of-an-attacker"}'
CANCELLED = "The installation was cancelled"
NOT_BEGUN = "This browser did not begin the installation"
USED = "This page was used before or is too old"


@pytest.fixture
async def one(tmp_path: Path, store: Store) -> AsyncGenerator[World]:
    async with world(tmp_path, store, "A") as opened, opened.running():
        yield opened


async def stored(world: World) -> dict[str, bytes]:
    keys = world.store.keys_of_tenant("default")
    return await world.store.installations.all(keys)


async def refused(browser: Browser, back: str, sentence: str) -> None:
    _, headers, text = await browser.get(back)
    assert sentence in text
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


async def test_a_stolen_state_is_refused_in_another_browser(one: World) -> None:
    victim, thief = one.browser, one.browser
    back = await victim.consent(await victim.begin(), "T0A")

    await refused(thief, back, NOT_BEGUN)
    await thief.begin()
    await refused(thief, back, NOT_BEGUN)

    assert await stored(one) == {}
    status, _, _ = await victim.get(back)
    assert status == 200
    assert await stored(one)


async def test_a_page_installs_once(one: World) -> None:
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A")
    assert (await browser.get(back))[0] == 200
    before = await stored(one)

    await refused(browser, back, USED)

    assert await stored(one) == before


async def test_of_two_requests_at_once_one_installs(one: World) -> None:
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A")

    answers = await asyncio.gather(*(browser.get(back) for _ in range(5)))

    assert sorted(status for status, _, _ in answers) == [200, 401, 401, 401, 401]


async def test_a_code_is_exchanged_once(one: World) -> None:
    first, second = one.browser, one.browser
    back = await first.consent(await first.begin(), "T0A")
    assert (await first.get(back))[0] == 200
    before = await stored(one)
    other = state_in(await second.begin())

    await refused(
        second, back.replace(state_in(back), other), "The installation did not succeed"
    )

    assert await stored(one) == before


async def test_an_old_state_is_refused(one: World) -> None:
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A")
    name = one.store.keys_of_tenant("default").install_state(state_in(back))
    left_ms = await one.store.conn.command("PTTL", name)
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= 10 * 60 * 1000
    await one.store.conn.command("PEXPIREAT", name, 1)

    await refused(browser, back, USED)

    assert await stored(one) == {}


async def test_an_invented_state_is_refused_with_a_fitting_cookie(one: World) -> None:
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A")
    browser.cookie = f"{STATE}=invented"

    await refused(browser, back.replace(state_in(back), "invented"), USED)

    assert await stored(one) == {}


async def test_two_browsers_install_independently(one: World) -> None:
    browsers = [one.browser, one.browser]
    backs = [await each.consent(await each.begin(), "T0A") for each in browsers]

    answers = [await b.get(back) for b, back in zip(browsers, backs, strict=True)]

    assert [status for status, _, _ in answers] == [200, 200]
    await one.serves("A")


async def test_a_cancelled_installation_changes_nothing(one: World) -> None:
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A", declines=True)

    await refused(browser, back, CANCELLED)

    assert await stored(one) == {}


async def test_a_reflected_reason_is_no_markup(one: World) -> None:
    _, _, text = await one.browser.get(
        f"{one.url}/slack/oauth_redirect?error=<script>alert(1)</script>"
    )

    assert "<script>" not in text


async def test_an_unlisted_workspaces_token_is_revoked(one: World) -> None:
    installer = one.slack.slack.installer
    one.slack.workspace.team_id = "T0ELSE"
    installer.places["T0ELSE"] = installer.places.pop("T0A")
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0ELSE")

    await refused(browser, back, "This Keyturn does not serve T0ELSE")

    assert await stored(one) == {}
    assert "auth.revoke" in [call.method for call in one.slack.calls]


async def test_a_lesser_installation_does_not_replace_another(one: World) -> None:
    """The browser of a person names the scopes, so anybody can ask for fewer."""
    await one.browser.install("T0A")
    before = await stored(one)
    workspace = one.slack.workspace
    kept = [it for it in workspace.bot_scopes if it != "chat:write"]
    workspace.bot_scopes = tuple(kept)
    browser = one.browser
    back = await browser.consent(await browser.begin(), "T0A")

    await refused(browser, back, "Slack did not grant chat:write")

    assert await stored(one) == before


async def test_scopes_of_a_person_cannot_end_the_apps_token(one: World) -> None:
    """The browser names scopes of the person, too, who revokes that token later."""
    one.slack.control.rotate_tokens(enabled=True, life_s=3600)
    browser = one.browser
    address = (await browser.begin()).replace("user_scope=", "user_scope=search:read")
    back = await browser.consent(address, "T0A")
    assert (await browser.get(back))[0] == 200
    keys = one.store.keys_of_tenant("default")

    async def is_renewed() -> bool:
        [raw] = (await stored(one)).values()
        plain = await one.store.installations.decrypted(keys, "T0A", raw) or b""
        assert b"xoxp" not in plain
        is_valid = json.loads(plain)["bot_token"] in one.slack.slack.tokens.known
        return refreshes(one) > 0 and is_valid

    await eventually(is_renewed)


async def test_the_pages_are_limited(one: World) -> None:
    statuses = list[int]()
    while 429 not in statuses and len(statuses) < 100:
        statuses.append((await one.browser.get(f"{one.url}/slack/install"))[0])

    assert len(statuses) > 20
    assert set(statuses[:-1]) == {200}
    assert statuses[-1] == 429


async def test_a_token_is_encrypted_although_the_store_is_not(one: World) -> None:
    await one.browser.install("T0A")
    [token] = [
        value
        for value in one.slack.slack.tokens.known
        if value.startswith("xoxb") and value != one.slack.bot_token
    ]

    keys = one.store.keys_of_tenant("default")
    [raw] = (await stored(one)).values()
    audit = await one.store.conn.command("XRANGE", keys.audit, "-", "+")
    plain = await one.store.installations.decrypted(keys, "T0A", raw)
    assert token.encode() in (plain or b"")
    assert token.encode() not in raw
    assert token not in str(audit)


@pytest.mark.parametrize("change", ["plain", "moved", "of another tenant"])
async def test_a_forged_installation_is_not_used(one: World, change: str) -> None:
    await one.browser.install("T0A")
    await one.serves("A")
    installations = one.store.installations
    keys = one.store.keys_of_tenant("default")
    [body] = (await stored(one)).values()
    if change == "plain":
        body = await installations.decrypted(keys, "T0A", body) or b""
    elif change == "moved":
        await installations.write(keys, "T0B", BODY, None)
        body = (await stored(one))["T0B"]
    else:
        other = one.store.keys_of_tenant("other")
        await installations.write(other, "T0A", BODY, None)
        body = (await installations.all(other))["T0A"]
    await one.store.conn.command("HSET", keys.installations, "T0A", body)

    async def is_stopped() -> bool:
        return "not installed" in str((await one.readiness())[1])

    await eventually(is_stopped)
    events = await audit_entries(one.store.conn, keys)
    [found] = [e for e in events if e.name is EventName.SECURITY_DETECTED]
    assert (found.reason, found.data["about"]) == ("seal_wrong", "installation")


async def test_an_unsigned_delivery_reaches_no_workspace(one: World) -> None:
    await one.browser.install("T0A")
    await one.serves("A")
    body = {"type": "event_callback", "team_id": "T0A", "event": {"type": "x"}}
    url = f"{one.url}/slack/events"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body) as answer,
    ):
        assert answer.status == 401
