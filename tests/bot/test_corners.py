"""The rare turns of the transports and of posting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from slack_bolt.response import BoltResponse

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.ingress import Delivery, Sockets, StoreNonces
from keyturn.bot.limits import Limits
from keyturn.bot.reviewers import Reviewers
from keyturn.bot.web import Slack
from keyturn.gateway.approvals.decisions import AccountKind
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.config import SlackMode
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, ME, TEAM, Stack, says
from tests.conftest import eventually


@asynccontextmanager
async def slack_of(sandbox: Sandbox) -> AsyncGenerator[Slack]:
    async with aiohttp.ClientSession() as session:
        yield Slack(sandbox.bot_token, api_url=sandbox.api_url, session=session)


def card_publisher_with(slack: Slack, stack: Stack) -> CardPublisher:
    return CardPublisher(
        slack,
        Limits(asyncio.get_running_loop().time),
        stack.store,
        stack.config,
        ME,
    )


async def test_a_surplus_copy_that_stays_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    approval = await stack.approval(await stack.refund())
    await stack.store.cards.posted(
        stack.keys, approval.id, channel=CHANNEL, ts="1.000001"
    )
    stack.sandbox.faults.plan("http_500", "chat.delete")

    async with slack_of(stack.sandbox) as slack:
        place = await card_publisher_with(slack, stack).post_card(
            approval, channel=CHANNEL, now_ms=0
        )

    assert place.ts == "1.000001"
    assert "card.surplus_stays" in caplog.text
    [message] = await stack.actor("U0ANA").messages(CHANNEL)
    assert "was replaced" in str(message)


async def test_a_note_that_we_cannot_show_says_so(stack: Stack) -> None:
    async with slack_of(stack.sandbox) as slack:
        broken = Message(blocks=({"type": "nonsense"},), text="a note")

        await card_publisher_with(slack, stack).post(CHANNEL, broken)

    shown = await stack.actor("U0ANA").messages(CHANNEL)
    assert says("cannot be displayed")(shown[-1])


async def test_a_lost_card_is_told_where_the_agent_was_asked(stack: Stack) -> None:
    async with stack.running():
        ts = await stack.actor("U0DAN").say("#general", "hello")
        origin = Origin(channel="C0GENERAL", thread_ts=ts)

        await stack.submit(("lonely", {}), origin=origin)

        found = await stack.actor("U0DAN").message_with(
            "#general", says("cannot be posted")
        )
        assert found["thread_ts"] == ts


async def test_a_call_that_hangs_at_the_end_is_given_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()

    async def hang(*_: object, **__: object) -> object:
        started.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(publisher, "_GRACE_S", 0.05)
    monkeypatch.setattr(CardPublisher, "post_card", hang)
    async with asyncio.timeout(30):
        async with stack.running():
            verdict = await stack.refund()
            await started.wait()

    assert (await stack.approval(verdict)).rev == 1


async def test_without_any_socket_the_bot_is_not_ready(stack: Stack) -> None:
    async with (
        stack.running(mode=SlackMode.SOCKET) as bot,
        aiohttp.ClientSession() as session,
    ):
        url = bot.url.replace("/slack/events", "/readyz")
        stack.sandbox.control.drop()

        async def is_unready() -> bool:
            async with session.get(url) as answer:
                return answer.status == HTTPStatus.SERVICE_UNAVAILABLE

        await eventually(is_unready)


@dataclass
class Client:
    """A socket's other end; Slack sends an envelope again when an ack was lost."""

    sent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logger: logging.Logger = field(default_factory=logging.getLogger)

    async def send_socket_mode_response(self, response: Any) -> None:
        self.sent.append(response.to_dict())


@dataclass
class Request:
    envelope_id: str = "e1"
    payload: dict[str, object] = field(default_factory=dict[str, object])
    retry_attempt: int | None = 1
    retry_reason: str | None = "timeout"


@dataclass
class Nonces:
    seen: set[str] = field(default_factory=set[str])

    async def is_first(self, digest: str) -> bool:
        is_new = digest not in self.seen
        self.seen.add(digest)
        return is_new

    async def forget(self, digest: str) -> None:
        self.seen.discard(digest)


@pytest.mark.parametrize(
    ("answer", "times", "answered"),
    [
        (BoltResponse(status=200), 1, 2),
        (BoltResponse(status=200, body={"response_action": "clear"}), 1, 2),
        (BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE), 2, 0),
        (BoltResponse(status=HTTPStatus.BAD_REQUEST), 1, 1),
    ],
)
async def test_an_envelope_is_handled_until_it_is_kept_and_then_acknowledged(
    answer: BoltResponse, times: int, answered: int
) -> None:
    handled: list[Delivery] = []

    async def handle(envelope: Delivery) -> BoltResponse:
        handled.append(envelope)
        return answer

    slack: Any = None
    sockets = Sockets(
        slack, "xapp-1", nonces=cast("StoreNonces", Nonces()), handle=handle
    )
    client = Client()
    receive = cast("Any", sockets)._receive
    for _ in range(2):
        await receive(client, Request())

    assert len(handled) == times
    assert len(client.sent) == answered


async def test_a_socket_is_closed_once_running_envelopes_are_answered() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    answered_at_close = list[int]()
    client = Client()

    async def handle(envelope: Delivery) -> BoltResponse:
        del envelope
        started.set()
        await may_end.wait()
        return BoltResponse(status=200)

    async def close() -> None:
        answered_at_close.append(len(client.sent))

    slack: Any = None
    sockets: Any = Sockets(
        slack, "xapp-1", nonces=cast("StoreNonces", Nonces()), handle=handle
    )
    sockets._clients.append(SimpleNamespace(close=close))
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(sockets._receive(client, Request()))
        await started.wait()
        closing = tasks.create_task(sockets.close())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()

    assert answered_at_close == [1]


def reviewers_of(slack: Slack) -> Reviewers:
    return Reviewers(slack, team=TEAM, clock=lambda: 0.0)


async def test_a_refusal_that_is_not_about_the_person_leaves_them_unknown() -> None:
    async with Sandbox() as sandbox, slack_of(sandbox) as slack:
        sandbox.control.scopes(["chat:write"])
        reviewers = reviewers_of(slack)

        reviewer = await reviewers.resolve("U0ANA", user_team=TEAM)

    assert reviewer.account is AccountKind.UNKNOWN


async def test_two_fresh_questions_at_once_are_both_answered() -> None:
    async with Sandbox() as sandbox, slack_of(sandbox) as slack:
        reviewers = reviewers_of(slack)

        found = await asyncio.gather(
            *(reviewers.resolve("U0ANA", user_team=TEAM, fresh=True) for _ in range(3))
        )

    assert {each.account for each in found} == {AccountKind.MEMBER}


async def test_an_event_that_breaks_a_listener_is_not_repeated(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(type(stack.reviews), "ask_agent", broken)
    with caplog.at_level(logging.ERROR):
        async with stack.running():
            await stack.actor("U0DAN").say("#general", "@keyturn refund")

            async def is_answered() -> bool:
                return [sent.status for sent in stack.sandbox.requests] == [200]

            await eventually(is_answered)

    assert "listener.failed" in caplog.text
