"""A test can change the workspace and its faults, in Python or over HTTP."""

from typing import Any

import aiohttp
import pytest

from keyturn.sandbox.client import People
from keyturn.sandbox.server import Sandbox
from tests.sandbox.bolt_app import error

APPROVALS = "C0APPROVALS"


async def control(sandbox: Sandbox, **command: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{sandbox.url}/sandbox/control", json=command) as response,
    ):
        return dict(await response.json())


async def test_commands_change_the_workspace(sandbox: Sandbox, client: Any) -> None:
    for command in (
        {"do": "set_group", "group": "S0SUPPORT", "users": ["U0EVE"]},
        {"do": "deactivate", "user": "U0BEN"},
        {"do": "leave", "channel": APPROVALS, "user": "U0KEYTURN"},
        {"do": "join", "channel": "C0PRIVATE", "user": "U0KEYTURN"},
    ):
        assert await control(sandbox, **command) == {"ok": True, "result": None}

    support = await client.usergroups_users_list(usergroup="S0SUPPORT")
    assert support["users"] == ["U0EVE"]
    assert (await client.users_info(user="U0BEN"))["user"]["deleted"] is True
    posting = client.chat_postMessage(channel=APPROVALS, text="t")
    assert await error(posting) == "not_in_channel"
    assert (await client.chat_postMessage(channel="C0PRIVATE", text="t"))["ok"]
    await control(sandbox, do="reactivate", user="U0BEN")
    assert (await client.users_info(user="U0BEN"))["user"]["deleted"] is False


async def test_commands_set_faults_and_time(sandbox: Sandbox, client: Any) -> None:
    await control(sandbox, do="fault", fault="rate_limit", method="chat.postMessage")
    await control(sandbox, do="delivery_fault", fault="duplicate")
    await control(sandbox, do="clear_faults")
    await control(sandbox, do="rates", enabled=False)
    await control(sandbox, do="rates", enabled=True)
    await control(sandbox, do="rates", scale=0.1)
    before = sandbox.clock.now()
    await control(sandbox, do="advance", seconds=1000)

    await client.chat_postMessage(channel=APPROVALS, text="t")
    assert await error(client.chat_postMessage(channel=APPROVALS, text="t")) == (
        "ratelimited"
    )
    assert sandbox.clock.now() - before >= 1000
    calls = await control(sandbox, do="calls")
    assert [call["error"] for call in calls["result"]] == [None, "ratelimited"]
    assert (await control(sandbox, do="problems"))["result"] == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"do": "explode"}, "unknown_command"),
        ({"do": "run", "command": {}}, "unknown_command"),
        ({"do": "__init__"}, "unknown_command"),
        ({"do": "advance"}, "invalid_arguments"),
        ({"do": "advance", "seconds": -1}, "invalid_arguments"),
        ({"do": "fault", "fault": "earthquake"}, "invalid_arguments"),
        ({"do": "resend"}, "invalid_arguments"),
        ({"do": "set_group", "group": "S0NO", "users": []}, "no_such_subteam"),
        ({"do": "deactivate", "user": "U0NO"}, "user_not_found"),
        ({"do": "archive", "channel": "C0NO"}, "channel_not_found"),
    ],
)
async def test_a_bad_command_is_refused(
    sandbox: Sandbox, command: dict[str, Any], expected: str
) -> None:
    answer = await control(sandbox, **command)

    assert answer["ok"] is False
    assert answer["error"] == expected


async def test_people_act_on_a_sandbox_that_runs_elsewhere(sandbox: Sandbox) -> None:
    people = People(sandbox.url)
    with pytest.raises(RuntimeError, match="use `async with People"):
        people.person("U0ANA")

    async with people:
        ana = people.person("U0ANA")
        await ana.say("#general", "from afar")
        (message,) = await ana.messages("C0GENERAL")

    assert message["text"] == "from afar"


async def test_a_shared_channel_has_another_id(sandbox: Sandbox, client: Any) -> None:
    ts = (await client.chat_postMessage(channel=APPROVALS, text="t"))["ts"]
    await control(sandbox, do="share", channel=APPROVALS, new_id="C0SHARED")

    gone = client.chat_update(channel=APPROVALS, ts=ts, text="u")

    assert await error(gone) == "channel_not_found"
    assert (await client.chat_update(channel="C0SHARED", ts=ts, text="u"))["ok"]
