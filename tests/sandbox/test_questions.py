"""What an app may ask about the workspace is answered as Slack answers it."""

from typing import Any

import pytest

from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import modal
from tests.sandbox.bolt_app import error, refusal

APPROVALS = "C0APPROVALS"
METHOD_UNSUPPORTED = "method_not_supported_for_channel_type"


async def test_people_and_groups_are_listed(sandbox: Sandbox, client: Any) -> None:
    sandbox.control.set_group("S0SUPPORT", ["U0ANA", "U0BEN", "U0GONE"])

    stranger = await client.users_info(user="U0STRANGER")
    everyone = await client.users_list(limit=4)
    rest = await client.users_list(
        limit=100, cursor=everyone["response_metadata"]["next_cursor"]
    )
    support = await client.usergroups_users_list(usergroup="S0SUPPORT")
    groups = await client.usergroups_list(include_users=True)

    assert stranger["user"]["team_id"] == "T0OTHER"
    assert stranger["user"]["is_stranger"] is True
    listed = [*everyone["members"], *rest["members"]]
    assert {u["id"] for u in listed} == set(sandbox.workspace.users)
    assert support["users"] == ["U0ANA", "U0BEN"]
    assert [g["handle"] for g in groups["usergroups"]] == ["support", "senior"]
    unknown = client.usergroups_users_list(usergroup="S0NONE")
    assert await error(unknown) == "no_such_subteam"


async def test_history_needs_its_scope(sandbox: Sandbox, client: Any) -> None:
    scopes = ["chat:write", "channels:history", "channels:read"]
    sandbox.control.scopes(scopes)
    parent = await client.chat_postMessage(channel=APPROVALS, text="one")
    await client.chat_postMessage(
        channel=APPROVALS, text="reply", thread_ts=parent["ts"]
    )
    await client.chat_postMessage(channel=APPROVALS, text="two")

    first = await client.conversations_history(channel=APPROVALS, limit=1)
    older = await client.conversations_history(channel=APPROVALS, latest=parent["ts"])
    thread = await client.conversations_replies(channel=APPROVALS, ts=parent["ts"])
    members = await client.conversations_members(channel="C0GENERAL")
    listed = await client.conversations_list(exclude_archived=True)
    info = await client.conversations_info(channel=APPROVALS)

    assert [m["text"] for m in first["messages"]] == ["two"]
    assert first["has_more"] is True
    assert older["messages"] == []
    assert [m["text"] for m in thread["messages"]] == ["one", "reply"]
    assert "U0KEYTURN" in members["members"]
    assert [c["name"] for c in listed["channels"]] == ["agent-approvals", "general"]
    assert info["channel"]["is_member"] is True


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("conversations.history", {"limit": 0}, "invalid_limit"),
        ("conversations.history", {"cursor": "99"}, "invalid_cursor"),
        ("conversations.history", {"channel": "D0ANA"}, "missing_scope"),
        ("conversations.history", {"channel": "C0GENERAL"}, "not_in_channel"),
        ("conversations.history", {"channel": "C0PRIVATE"}, "channel_not_found"),
        ("conversations.replies", {"ts": "1.000000"}, "thread_not_found"),
        ("conversations.replies", {}, "invalid_arguments"),
        ("conversations.open", {"users": "U0ANA,U0BEN"}, METHOD_UNSUPPORTED),
        ("conversations.open", {"users": "U0KEYTURN"}, "cannot_dm_bot"),
        ("conversations.open", {}, "invalid_arguments"),
        ("api.test", {"error": "my_error"}, "my_error"),
        ("blocks.validate", {}, "invalid_arguments"),
        ("blocks.validate", {"view": {"type": "home"}}, "invalid_view"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    sandbox: Sandbox,
    client: Any,
    method: str,
    arguments: dict[str, Any],
    expected: str,
) -> None:
    scopes = ("channels:history", "channels:read", "groups:history", "im:write")
    granted = {*sandbox.workspace.bot_scopes, *scopes} - {"im:history"}
    sandbox.control.scopes(sorted(granted))
    sandbox.control.leave("C0GENERAL", "U0KEYTURN")
    sandbox.workspace.messages[APPROVALS].clear()
    await client.chat_postMessage(channel=APPROVALS, text="one")

    call = client.api_call(method, json={"channel": APPROVALS, **arguments})

    assert await error(call) == expected


async def test_blocks_validate_answers_without_posting(client: Any) -> None:
    fine = await client.api_call("blocks.validate", json={"view": modal()})
    bad = await refusal(
        client.api_call("blocks.validate", json={"blocks": [{"type": "shout"}]})
    )

    assert fine["ok"] is True
    assert bad["error"] == "invalid_blocks"
    assert bad["errors"][0]["pointer"] == "/blocks/0/type"
