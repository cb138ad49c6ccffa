"""A real Bolt app works against the sandbox over both transports."""

from typing import Any

from slack_bolt.context.ack.async_ack import AsyncAck
from slack_sdk.web.async_client import AsyncWebClient

from bot.sandbox.server import Sandbox
from tests.sandbox.bolt_app import RunningApp


def card(text: str, block_id: str = "b1") -> list[dict[str, Any]]:
    return [
        {"type": "section", "text": {"type": "plain_text", "text": text}},
        {
            "type": "actions",
            "block_id": block_id,
            "elements": [
                {
                    "type": "button",
                    "action_id": "approve",
                    "text": {"type": "plain_text", "text": "Approve"},
                    "value": "v1",
                }
            ],
        },
    ]


async def test_a_click_is_acknowledged_and_the_card_is_updated(
    sandbox: Sandbox, app: RunningApp
) -> None:
    @app.bolt.action("approve")
    async def approve(
        ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient
    ) -> None:
        app.heard.append(body)
        await ack()
        await client.chat_update(
            channel=body["channel"]["id"],
            ts=body["message"]["ts"],
            text="approved",
            blocks=card("approved")[:1],
        )

    posted = await app.client.chat_postMessage(
        channel="#agent-approvals", text="card", blocks=card("please")
    )
    ana = sandbox.person("U0ANA")
    await ana.click("C0APPROVALS", posted["ts"], "approve")
    changed = await ana.message_with("C0APPROVALS", lambda m: m["text"] == "approved")

    assert changed["ts"] == posted["ts"]
    assert len(changed["blocks"]) == 1
    heard = app.heard[0]
    assert heard["user"]["id"] == "U0ANA"
    assert heard["actions"][0]["value"] == "v1"
    assert heard["container"]["message_ts"] == posted["ts"]
