"""Planned misfortunes happen once, and as described."""

from typing import Any, cast

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError

from keyturn.sandbox.client import Person
from keyturn.sandbox.faults import DeliveryFault, Fault
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"


async def post(client: Any, text: str = "t") -> Any:
    return await client.chat_postMessage(channel=APPROVALS, text=text)


async def test_a_lost_response_means_the_post_happened_all_the_same(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    sandbox.faults.plan(Fault.LOST_RESPONSE, "chat.postMessage")

    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(client, "lost")
    await post(client, "seen")

    texts = [message["text"] for message in await ana.messages(APPROVALS)]
    assert texts == ["lost", "seen"]
    assert [call.error for call in sandbox.calls] == [None, None]


@pytest.mark.parametrize(
    ("fault", "status"), [(Fault.HTTP_500, 500), (Fault.RATE_LIMIT, 429)]
)
async def test_a_failed_call_changes_nothing(
    sandbox: Sandbox, client: Any, ana: Person, fault: Fault, status: int
) -> None:
    sandbox.faults.plan(fault, calls=2, seconds=7)

    for _ in range(2):
        with pytest.raises(SlackApiError) as caught:
            await post(client)
        response = cast("Any", caught.value).response
        assert response.status_code == status
        if status == 429:
            assert response.headers["Retry-After"] == "7"

    assert await ana.messages(APPROVALS) == []
    assert (await post(client))["ok"]


async def test_a_delivery_can_come_twice_or_claim_to_be_a_retry(
    sandbox: Sandbox, app: RunningApp, ana: Person
) -> None:
    @app.on("action", "approve")
    async def approve(ack: Any, body: dict[str, Any], request: Any) -> None:
        retry = request.headers.get("x-slack-retry-num")
        app.heard.append({"action": body["actions"][0], "retry": retry})
        await ack()

    posted = await app.client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=card("one")
    )

    sandbox.faults.plan_delivery(DeliveryFault.DUPLICATE)
    await ana.click(APPROVALS, posted["ts"], "approve")
    sandbox.faults.plan_delivery(DeliveryFault.RETRY_HEADERS, retry_num=2)
    await ana.click(APPROVALS, posted["ts"], "approve")

    first, second, third = app.heard
    assert first["action"] == second["action"] != third["action"]
    assert first["retry"] is second["retry"] is None
    assert third["retry"] == ["2"]
