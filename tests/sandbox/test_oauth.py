"""Installing the app and rotating its tokens work as Slack's do, once each."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from keyturn.sandbox.samples import sample_workspace
from keyturn.sandbox.server import Sandbox
from tests.sandbox.bolt_app import error, new_client

# The SDK itself uses aiohttp's BasicAuth, which aiohttp 4 will drop.
pytestmark = pytest.mark.filterwarnings("ignore:BasicAuth:DeprecationWarning")

BACK = "https://app.example/slack/oauth_redirect?x=1"


async def consented(sandbox: Sandbox, **changes: str) -> dict[str, list[str]]:
    """Walk through Slack's page and return the query it leads back with."""
    query = {
        "client_id": sandbox.slack.installer.client_id,
        "redirect_uri": BACK,
        "state": "s1",
        **changes,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"{sandbox.url}/oauth/v2/authorize", params=query, allow_redirects=False
        ) as response,
    ):
        if response.status != 302:
            return {"error": [(await response.json())["error"]]}
        return parse_qs(urlsplit(response.headers["Location"]).query)


def exchanging(sandbox: Sandbox, client: Any, **arguments: str) -> Any:
    installer = sandbox.slack.installer
    return client.oauth_v2_access(
        **{
            "client_id": installer.client_id,
            "client_secret": installer.client_secret,
            **arguments,
        }
    )


async def test_a_code_buys_one_token(sandbox: Sandbox, client: Any) -> None:
    query = await consented(sandbox)
    (code,) = query["code"]

    answer = await exchanging(sandbox, client, code=code, redirect_uri=BACK)

    assert query["state"] == ["s1"]
    assert query["x"] == ["1"]
    assert answer["team"]["id"] == "T0SANDBOX"
    assert answer["authed_user"]["id"] == "U0ANA"
    installed = new_client(sandbox, answer["access_token"])
    assert (await installed.auth_test())["bot_id"] == "B0KEYTURN"
    again = exchanging(sandbox, client, code=code)
    assert await error(again) == "code_already_used"
    assert "client_secret" not in str(sandbox.calls)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"client_id": "other"}, "invalid_client_id"),
        ({"client_secret": "guessed"}, "bad_client_secret"),
        ({"code": "made-up"}, "invalid_code"),
        ({"redirect_uri": "https://elsewhere.example"}, "bad_redirect_uri"),
        ({"grant_type": "password"}, "invalid_grant_type"),
        (
            {"grant_type": "refresh_token", "refresh_token": "xoxe-1-no"},
            "invalid_refresh_token",
        ),
    ],
)
async def test_a_bad_exchange_is_refused(
    sandbox: Sandbox, client: Any, arguments: dict[str, str], expected: str
) -> None:
    (code,) = (await consented(sandbox))["code"]

    call = exchanging(sandbox, client, **{"code": code, **arguments})

    assert await error(call) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"client_id": "other"}, "invalid_client_id"),
        ({"redirect_uri": "javascript:alert(1)"}, "bad_redirect_uri"),
    ],
)
async def test_consent_is_asked_only_for_this_app(
    sandbox: Sandbox, changes: dict[str, str], expected: str
) -> None:
    assert await consented(sandbox, **changes) == {"error": [expected]}


async def test_a_refresh_token_works_once(sandbox: Sandbox, client: Any) -> None:
    sandbox.control.rotate_tokens(enabled=True)
    (code,) = (await consented(sandbox))["code"]
    first = await exchanging(sandbox, client, code=code)
    refresh = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}

    second = await exchanging(sandbox, client, **refresh)

    old = new_client(sandbox, first["access_token"])
    new = new_client(sandbox, second["access_token"])
    assert await error(old.auth_test()) == "invalid_auth"
    assert (await new.auth_test())["ok"]
    again = exchanging(sandbox, client, **refresh)
    assert await error(again) == "invalid_refresh_token"
    sandbox.clock.advance(second["expires_in"])
    assert await error(new.auth_test()) == "token_expired"


async def test_declined_consent_is_an_error(sandbox: Sandbox) -> None:
    query = await consented(sandbox, sandbox_declines="1")

    assert query == {"error": ["access_denied"], "state": ["s1"], "x": ["1"]}


async def test_an_app_serves_several_workspaces(sandbox: Sandbox, client: Any) -> None:
    other = sample_workspace()
    other.team_id = "T0SECOND"
    async with Sandbox(other, joins=sandbox):
        (code,) = (await consented(sandbox, team="T0SECOND"))["code"]
        answer = await exchanging(sandbox, client, code=code)

        installed = new_client(sandbox, answer["access_token"])
        assert (await installed.auth_test())["team_id"] == "T0SECOND"
    assert await consented(sandbox, team="T0UNKNOWN") == {
        "error": ["invalid_team_for_non_distributed_app"]
    }


async def test_a_token_names_its_workspace(sandbox: Sandbox, client: Any) -> None:
    sandbox.workspace.enterprise_id = "E0BIG"
    (code,) = (await consented(sandbox, team="E0BIG"))["code"]
    answer = await exchanging(sandbox, client, code=code)

    installed = new_client(sandbox, answer["access_token"])
    identity = await installed.auth_test()

    assert (answer["team"], answer["is_enterprise_install"]) == (None, True)
    assert (identity["team_id"], identity["is_enterprise_install"]) == ("E0BIG", True)
    of_group = installed.usergroups_users_list(usergroup="S0SUPPORT")
    assert await error(of_group) == "invalid_arguments"
    found = await installed.usergroups_users_list(
        usergroup="S0SUPPORT", team_id="T0SANDBOX"
    )
    assert found["users"]


async def test_an_uninstalled_app_cannot_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.control.rotate_tokens(enabled=True)
    (code,) = (await consented(sandbox))["code"]
    answer = await exchanging(sandbox, client, code=code)
    refresh = {"grant_type": "refresh_token", "refresh_token": answer["refresh_token"]}

    await sandbox.control.uninstall_app()

    installed = new_client(sandbox, answer["access_token"])
    assert await error(installed.auth_test()) == "token_revoked"
    assert (
        await error(exchanging(sandbox, client, **refresh)) == "invalid_refresh_token"
    )
