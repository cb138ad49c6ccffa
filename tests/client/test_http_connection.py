"""What an agent's process does when the gateway is slow, away, busy or cut off."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import web

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.background import spawn
from keyturn.gateway.client import bridge, http_connection, http_gateway
from keyturn.gateway.client.bridge import Awaiting, Blocking, ask_with_retries, drive
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import (
    KeyRefused,
    KeyturnError,
    NotAllowed,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
    Unanswered,
)
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import Result, RunRef, Verb
from keyturn.gateway.protocol.wire import (
    Claimed,
    Done,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.resume.program_runs import Drive
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness, claim_of

REF = TurnRef(agent="support", thread="t1", message_id="m1")
TURN = Turn(
    ref=REF,
    calls=(ProposedCall(tool="process_refund", args={"a": 1}, tool_call_id="c1"),),
)
Answered = Callable[[web.Request], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Answered], Awaitable[web.StreamResponse]]


@dataclass
class Faulty:
    """A gateway with one fault for each of its next requests."""

    api: ApiStack
    faults: list[Fault] = field(default_factory=list[Fault])
    bodies: list[str] = field(default_factory=list[str])

    @web.middleware
    async def between(
        self, request: web.Request, handler: Answered
    ) -> web.StreamResponse:
        self.bodies.append(await request.text())
        if self.faults:
            return await self.faults.pop(0)(request, handler)
        return await handler(request)


async def resets_after(request: web.Request, handler: Answered) -> web.StreamResponse:
    """Act, and cut the connection before the answer."""
    reply = await handler(request)
    assert request.transport
    request.transport.abort()
    return reply


async def closes_before(request: web.Request, _: Answered) -> web.StreamResponse:
    assert request.transport
    request.transport.close()
    return web.Response()


async def is_away(request: web.Request, _: Answered) -> web.StreamResponse:
    return web.Response(status=502, text="<h1>Bad Gateway</h1>")


async def hangs(request: web.Request, handler: Answered) -> web.StreamResponse:
    await asyncio.sleep(60)
    return await handler(request)


def asks_for_pause(status: int, after: str) -> Fault:
    async def fault(request: web.Request, _: Answered) -> web.StreamResponse:
        return web.Response(status=status, headers={"Retry-After": after}, text="busy")

    return fault


@pytest.fixture
async def faulty(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Faulty]:
    monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.001)
    found = Faulty(ApiStack(ServiceHarness(store)))
    async with serving(found.api.harness, [found.between]) as found.api:
        yield found


@pytest.mark.parametrize(
    "fault", [resets_after, closes_before, asks_for_pause(429, "0")]
)
async def test_a_repeated_write_counts_once(faulty: Faulty, fault: Fault) -> None:
    async with faulty.api.gateway() as gateway:
        faulty.faults[:] = [fault, fault]
        (verdict,) = await gateway.submit(TURN)

    assert verdict.kind is VerdictKind.HOLD
    assert len(faulty.bodies) == 3
    assert len(set(faulty.bodies)) == 1
    assert len(await faulty.api.harness.opened()) == 1


async def test_a_claim_whose_answer_was_lost_is_granted_once(faulty: Faulty) -> None:
    harness = faulty.api.harness
    async with faulty.api.gateway() as gateway:
        (verdict,) = await gateway.submit(TURN)
        await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
        claim = claim_of(REF, verdict)
        faulty.faults[:] = [resets_after]
        claimed = await gateway.claim(claim)
        assert isinstance(claimed, Claimed)
        faulty.faults[:] = [resets_after]
        done = Result(ok=True, summary="paid")
        assert await gateway.finish(verdict.item_id, claimed.fence, done)
        after = await gateway.claim(claim.with_(owner="1" * 32))

    assert claimed.fence == 1
    assert isinstance(after, Done)


@pytest.mark.parametrize(
    "fault", [is_away, asks_for_pause(503, "0"), asks_for_pause(503, "3600")]
)
async def test_retries_of_the_agent_are_one_write(faulty: Faulty, fault: Fault) -> None:
    async with faulty.api.gateway() as gateway:
        faulty.faults[:] = [fault] * (bridge.PORT_TRIES - 1)
        await ask_with_retries(Awaiting(), lambda: gateway.submit(TURN))

    assert len(faulty.bodies) == bridge.PORT_TRIES
    assert len(set(faulty.bodies)) == 1


async def test_a_slow_gateway_is_an_outage(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "TIMEOUT_S", 0.05)
    async with faulty.api.gateway() as gateway:
        faulty.faults[:] = [hangs]
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await gateway.note("support")


@pytest.mark.parametrize("fault", [resets_after, hangs])
async def test_a_write_without_an_answer_may_have_been_kept(
    faulty: Faulty, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty.api.gateway() as gateway:
        # The connection is open by then, so that the short time is for an answer.
        await gateway.note("support")
        if fault is hangs:
            monkeypatch.setattr(http_connection, "TIMEOUT_S", 0.05)
        faulty.faults[:] = [fault] * http_connection.TRIES
        with pytest.raises(Unanswered, match="not known whether it kept"):
            await gateway.submit(TURN)

    assert len(await faulty.api.harness.opened()) == (fault is resets_after)


async def test_a_cut_off_write_may_have_been_kept(faulty: Faulty) -> None:
    async with faulty.api.gateway() as gateway:

        async def and_is_away(
            request: web.Request, handler: Answered
        ) -> web.StreamResponse:
            gateway.connection.url = "http://127.0.0.1:9"
            return await resets_after(request, handler)

        faulty.faults[:] = [and_is_away]
        with pytest.raises(Unanswered):
            await gateway.submit(TURN)

    assert len(faulty.bodies) == 1
    assert len(await faulty.api.harness.opened()) == 1


async def test_a_wrong_address_is_explained(faulty: Faulty) -> None:
    url, key = faulty.api.url, faulty.api.key()
    wrong = {
        url.replace("http://", "https://"): "no TLS is spoken there",
        "http://127.0.0.1:9": "no program listens there",
    }
    for address, why in wrong.items():
        elsewhere = HttpGateway(address, key)
        with pytest.raises(KeyturnError, match=why) as raised:
            await elsewhere.submit(TURN)
        await elsewhere.aclose()
        assert repr(address) in str(raised.value)
    with pytest.raises(NotAllowed, match=r"'/v1/v1/\w+'.*ends before '/v1'"):
        await HttpGateway(f"{url}/v1", key).submit(TURN)


async def test_a_synchronous_agent_asks_from_the_background(faulty: Faulty) -> None:
    gateway = HttpGateway(faulty.api.url, faulty.api.key())

    def ask() -> object:
        work = ask_with_retries(Blocking(), lambda: gateway.submit(TURN))
        found = drive(work)
        spawn(gateway.aclose()).result()
        return found

    faulty.faults[:] = [is_away, is_away]
    assert await asyncio.to_thread(ask)
    assert len(set(faulty.bodies)) == 1


async def test_a_refused_key_is_explained_and_not_repeated(faulty: Faulty) -> None:
    wrong = "tk_" + "0" * 16 + "_" + "0" * 64
    async with faulty.api.gateway(wrong) as gateway:
        with pytest.raises(KeyRefused, match="KEYTURN_API_KEY") as raised:
            await ask_with_retries(Awaiting(), lambda: gateway.submit(TURN))

    assert wrong not in str(raised.value)
    assert len(faulty.bodies) == 1


@pytest.mark.parametrize("key", ["", "secret", "tk_a b", "tk_a\n", "tk_ä"])
def test_what_is_no_key_is_refused_at_once(key: str) -> None:
    with pytest.raises(SettingsError, match="KEYTURN_API_KEY") as raised:
        HttpGateway("https://gateway.example", key)
    if key:
        assert key not in str(raised.value)


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAllowed, match="KEYTURN_GATEWAY"):
        http_gateway.current_gateway()
    monkeypatch.setenv(http_gateway.URL_VARIABLE, "https://gateway.example")
    with pytest.raises(SettingsError, match="is missing"):
        http_gateway.current_gateway()
    monkeypatch.setenv(http_gateway.KEY_VARIABLE, "tk_1")
    found = http_gateway.current_gateway()

    assert repr(found) == "HttpGateway('https://gateway.example')"
    assert http_gateway.current_gateway() is found
    assert http_gateway.given_gateway("https://gateway.example") is found
    assert http_gateway.given_gateway("https://gateway.example", "tk_2") is not found
    assert http_gateway.given_gateway(None) is None
    assert http_gateway.given_gateway(found) is found
    with connected(HttpGateway("https://other.example", "tk_1")):
        assert http_gateway.current_gateway() is not found
    with pytest.raises(SettingsError, match="gateway='https"):
        http_gateway.given_gateway(found, "tk_1")


KEY = "tk_" + "0" * 16 + "_" + "0" * 64

TWO_LOOPS = """
import asyncio, sys
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import KeyRefused

gateway = HttpGateway(*sys.argv[1:])
for _ in range(2):
    try:
        asyncio.run(gateway.note("support"))
    except KeyRefused:
        print("answered")
"""


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        yield found


async def test_a_program_need_not_close_what_its_agents_ask_by(stack: ApiStack) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-W",
            "default::ResourceWarning",
            "-c",
            TWO_LOOPS,
            stack.url,
            KEY,
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split() == ["answered", "answered"]
    assert ended.stderr == ""


async def test_the_key_goes_to_its_gateway_only(stack: ApiStack) -> None:
    met = list[str]()

    async def elsewhere(request: web.BaseRequest) -> web.StreamResponse:
        met.append(request.headers.get("Authorization", ""))
        raise web.HTTPTemporaryRedirect(f"{stack.url}/v1/note")

    runner = web.ServerRunner(web.Server(elsewhere))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway = HttpGateway(f"http://127.0.0.1:{runner.addresses[0][1]}", stack.key())
    try:
        with pytest.raises(StoreUnavailable, match="answered 307"):
            await gateway.note("support")
    finally:
        await gateway.aclose()
        await runner.cleanup()

    assert len(met) == 1


def turn(args: dict[str, Any], **more: Any) -> Turn:
    call = ProposedCall(tool="process_refund", args=args, tool_call_id="c1")
    return Turn(ref=REF, calls=(call,), **more)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "'/calls/0/args/amount': a number is not finite"),
        (float("-inf"), "'/calls/0/args/amount': a number is not finite"),
        ("\ud800", "'/calls/0/args/amount': a string contains half of a surrogate"),
        (2**63, "'/calls/0/args/amount'"),
    ],
)
async def test_arguments_that_are_no_json_are_refused_and_name_the_place(
    stack: ApiStack, value: object, words: str
) -> None:
    async with stack.gateway() as gateway:
        with pytest.raises(NotAllowed, match=words):
            await gateway.submit(turn({"amount": value}))

    assert await stack.harness.opened() == []


async def test_a_text_without_unicode_is_refused(stack: ApiStack) -> None:
    asked = turn({"amount": 5}, says="\ud800")

    async with stack.gateway() as gateway:
        for port in (gateway, stack.harness.agents):
            with pytest.raises(
                NotAllowed, match="contains half of a surrogate pair, so"
            ):
                await port.submit(asked)
        with pytest.raises(NotAllowed, match="half of a surrogate"):
            await gateway.finish("ap_1.0", 1, Result(ok=True, summary="\ud800"))


@pytest.mark.parametrize("value", [float("nan"), "\ud800", 2**70])
async def test_a_bad_schema_only_stops_edits(stack: ApiStack, value: object) -> None:
    asked = turn({"amount": 5}, schemas={"process_refund": {"default": value}})

    async with stack.gateway() as gateway:
        (verdict,) = await gateway.submit(asked)

    assert verdict.kind is VerdictKind.HOLD
    assert Verb.EDIT not in verdict.allow


async def test_errors_quote_only_the_address(caplog: pytest.LogCaptureFixture) -> None:
    drive = Drive(RunRef(agent="support", thread="t1"), cast("Any", None), None)
    down = ThreadUnavailable("nothing listens there")
    down.__cause__ = StoreUnavailable("did not answer")

    with caplog.at_level(logging.WARNING):
        for error in (down, ConnectionError("a secret")):
            assert drive.pause_s(error, RetrySettings(), "https://gateway.example")

    assert "run.waiting gateway=https://gateway.example agent=support" in caplog.text
    assert "nothing listens there" in caplog.text
    assert "error=ConnectionError" in caplog.text
    assert "a secret" not in caplog.text
