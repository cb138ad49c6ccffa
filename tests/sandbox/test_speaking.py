"""People edit and delete their messages, and the app gets Slack's events."""

from typing import Any

from keyturn.sandbox.client import Person
from keyturn.sandbox.server import Sandbox
from tests.sandbox.bolt_app import RunningApp
from tests.sandbox.test_user_actions import APPROVALS, failure, posted

__all__ = ["posted"]


async def test_an_edit_is_another_event(http_app: RunningApp, ana: Person) -> None:
    @http_app.on("event", "app_mention")
    async def mention(body: dict[str, Any]) -> None:
        http_app.heard.append(body)

    ts = await ana.say(APPROVALS, "@keyturn hi")
    await ana.edit(APPROVALS, ts, "@keyturn hi there")
    await ana.edit(APPROVALS, ts, "@keyturn hi there")
    await ana.edit(APPROVALS, ts, "never mind")

    first, again = http_app.heard
    assert first["event_id"] != again["event_id"]
    assert first["event"]["ts"] == again["event"]["ts"] == ts
    assert "edited" not in first["event"]
    assert again["event"]["edited"]["user"] == "U0ANA"
    assert again["event"]["edited"]["ts"] > ts


async def test_only_ones_own_messages_can_be_edited_or_deleted(
    ana: Person, posted: str, sandbox: Sandbox
) -> None:
    ts = await sandbox.person("U0BEN").say(APPROVALS, "mine")

    assert await failure(ana.edit(APPROVALS, ts, "x")) == "cant_update_message"
    assert await failure(ana.delete(APPROVALS, ts)) == "cant_delete_message"
    assert await failure(ana.delete(APPROVALS, posted)) == "cant_delete_message"
    assert await failure(ana.edit(APPROVALS, "1.1", "x")) == "message_not_found"
    assert await failure(sandbox.person("U0BEN").edit(APPROVALS, ts, " ")) == "no_text"
