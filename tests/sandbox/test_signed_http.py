"""Deliveries over HTTP are signed as Slack signs them, and forged on request."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from slack_sdk.signature import Clock as SignatureClock
from slack_sdk.signature import SignatureVerifier

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.delivery import ACK_WITHIN_S
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.signed_http import Forgery
from tests.sandbox.blocks import card
from tests.sandbox.bolt_app import RunningApp, until

APPROVALS = "C0APPROVALS"


@dataclass
class Receiver:
    """A bare request URL that keeps the requests and answers as configured."""

    requests: list[tuple[dict[str, str], bytes]] = field(
        default_factory=list[tuple[dict[str, str], bytes]]
    )
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: str = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((dict(request.headers), body))
        return web.Response(status=self.status, headers=self.headers, text=self.body)


@pytest.fixture
async def receiver(sandbox: Sandbox) -> AsyncIterator[Receiver]:
    running = Receiver()
    application = web.Application()
    application.router.add_post("/slack", running.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sandbox.deliver_http(f"http://127.0.0.1:{runner.addresses[0][1]}/slack")
    yield running
    await runner.cleanup()


async def clicked(client: Any, ana: Person) -> None:
    posted = await client.chat_postMessage(
        channel=APPROVALS, text="t", blocks=card("one")
    )
    await ana.click(APPROVALS, posted["ts"], "approve")


class FixedClock(SignatureClock):
    """The sandbox's time, for the SDK's verifier."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def now(self) -> float:
        return self._sandbox.clock.now()


async def test_the_sdks_own_verifier_accepts_every_delivery(
    sandbox: Sandbox, client: Any, ana: Person, receiver: Receiver
) -> None:
    sandbox.clock.advance(3600)

    await clicked(client, ana)
    await ana.command("/approvals", "list", APPROVALS)
    await ana.say(APPROVALS, "@keyturn hello")

    verifier: Any = SignatureVerifier(sandbox.signing_secret, FixedClock(sandbox))
    kinds = [headers["Content-Type"] for headers, _ in receiver.requests]
    form, event = "application/x-www-form-urlencoded", "application/json"
    assert kinds == [form, form, event]
    for headers, body in receiver.requests:
        assert verifier.is_valid_request(body, headers)
        assert not verifier.is_valid_request(body + b" ", headers)
    action = json.loads(parse_qs(receiver.requests[0][1].decode())["payload"][0])
    assert action["type"] == "block_actions"
    command = parse_qs(receiver.requests[1][1].decode())
    assert command["command"] == ["/approvals"]
    assert command["is_enterprise_install"] == ["false"]
    assert json.loads(receiver.requests[2][1])["type"] == "event_callback"


@pytest.mark.parametrize(
    ("forgery", "status"),
    [
        (Forgery.NONE, 200),
        (Forgery.FRESH, 200),
        (Forgery.BAD_SIGNATURE, 401),
        (Forgery.WRONG_SECRET, 401),
        (Forgery.TAMPERED_BODY, 401),
        (Forgery.OLD, 401),
        (Forgery.FUTURE, 401),
        (Forgery.MISSING_SIGNATURE, 401),
        (Forgery.MISSING_TIMESTAMP, 401),
        (Forgery.NON_NUMERIC_TIMESTAMP, 500),
        (Forgery.NON_ASCII_SIGNATURE, 500),
    ],
)
async def test_bolt_meets_each_forgery(
    sandbox: Sandbox,
    http_app: RunningApp,
    ana: Person,
    forgery: Forgery,
    status: int,
) -> None:
    @http_app.on("action", "approve")
    async def approve(ack: Any) -> None:
        http_app.heard.append({})
        await ack()

    await clicked(http_app.client, ana)

    answer = await sandbox.control.resend(forgery)

    assert answer["status"] == status
    assert len(http_app.heard) == (2 if status == 200 else 1)


async def test_a_failed_interaction_warns_and_is_not_sent_again(
    sandbox: Sandbox, client: Any, ana: Person, receiver: Receiver
) -> None:
    receiver.status = 500

    with pytest.raises(UserActionFailed) as caught:
        await clicked(client, ana)

    assert caught.value.answer["reason"] == "http_500"
    (notice,) = await ana.notices()
    assert notice["text"] == "Keyturn answered with an error (http_500)."
    sandbox.clock.advance(600)
    assert len(receiver.requests) == 1


async def retry_waits(sandbox: Sandbox) -> None:
    """Wait until a retry waits for its time: longer than any answer takes."""
    await until(lambda: any(left > ACK_WITHIN_S for left in sandbox.clock.waits))


async def test_a_failed_event_is_sent_again_three_times(
    sandbox: Sandbox, ana: Person, receiver: Receiver
) -> None:
    receiver.status = 500

    await ana.say(APPROVALS, "@keyturn hello")
    for arrived, seconds in ((2, 0), (3, 60), (4, 300)):
        if seconds:
            await retry_waits(sandbox)
        sandbox.clock.advance(seconds)
        await until(lambda: len(receiver.requests) >= arrived)  # noqa: B023 - awaited here
    sandbox.clock.advance(3600)

    numbers = [headers.get("X-Slack-Retry-Num") for headers, _ in receiver.requests]
    assert numbers == [None, "1", "2", "3"]
    assert len({body for _, body in receiver.requests}) == 1
    assert receiver.requests[1][0]["X-Slack-Retry-Reason"] == "http_error"
