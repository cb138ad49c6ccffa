"""Planned misfortunes happen once, and as described."""

import asyncio
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


async def test_a_refusal_says_what_was_planned(sandbox: Sandbox, client: Any) -> None:
    sandbox.control.fault("refuse", "chat.postMessage", error="team_added_to_org")

    with pytest.raises(SlackApiError) as caught:
        await post(client)

    assert cast("Any", caught.value).response["error"] == "team_added_to_org"
    assert (await post(client))["ok"]


async def test_a_reset_connection_changes_nothing(
    sandbox: Sandbox, client: Any, ana: Person
) -> None:
    sandbox.faults.plan(Fault.RESET, "chat.postMessage")

    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(client)

    assert await ana.messages(APPROVALS) == []
    assert sandbox.calls[0].error == "reset"


async def test_a_slow_answer_comes_when_the_clock_says_so(
    sandbox: Sandbox, client: Any
) -> None:
    sandbox.faults.plan(Fault.SLOW, "chat.postMessage", seconds=30)

    posting = asyncio.create_task(post(client))
    await client.auth_test()
    assert not posting.done()
    sandbox.clock.advance(30)

    assert (await posting)["ok"]


async def test_a_fault_waits_for_its_own_method_and_can_be_called_off(
    sandbox: Sandbox, client: Any
) -> None:
    sandbox.faults.plan(Fault.HTTP_500, "chat.update", calls=5)

    assert (await post(client))["ok"]
    sandbox.faults.clear()
    posted = await post(client)
    assert (await client.chat_update(channel=APPROVALS, ts=posted["ts"], text="fine"))[
        "ok"
    ]


async def test_faults_of_calls_and_deliveries_last_as_long_as_planned(
    sandbox: Sandbox,
) -> None:
    faults = sandbox.faults
    faults.plan(Fault.SLOW, "a", calls=2)
    faults.plan(Fault.RESET, "b")
    faults.plan_delivery(DeliveryFault.DUPLICATE, deliveries=2)

    seen = [faults.next_fault(name) for name in ("b", "a", "a", "a", "b")]
    delivered = [faults.next_delivery_fault() for _ in range(3)]

    assert [planned and planned.fault for planned in seen] == [
        Fault.RESET,
        Fault.SLOW,
        Fault.SLOW,
        None,
        None,
    ]
    assert [bool(planned) for planned in delivered] == [True, True, False]


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
