"""Remote programs notice and report that their clock differs from the gateway's."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.client import http_gateway, outgoing
from keyturn.gateway.client.http_connection import GatewayClock, HttpConnection
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.errors import ClockWrong, StoreUnavailable
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.http_api import CLOCK_HEADER
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness, claim_of
from tests.webhooks.receiver import make_certificate, receiving

REF = TurnRef(agent="support", thread="t1", message_id="m1")
CALL = ProposedCall(tool="process_refund", args={"amount": 899}, tool_call_id="c1")
TWO_HOURS = 7200.0


def wall_s() -> float:
    return time.time()  # noqa: TID251 - what a test moves


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        found.api.clock_s = store.conn.clock.now_s
        yield found


@pytest.mark.parametrize("ahead_s", [TWO_HOURS, -TWO_HOURS])
async def test_the_gateway_is_told_of_a_clock_that_is_wrong(
    stack: ApiStack, ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, ...]] = []

    async def report(*found: str) -> None:
        told.append(found)

    stack.api.report = report
    async with stack.gateway() as gateway:
        await gateway.outcomes(REF)
        assert gateway.connection.clock.problem == ""
        gateway.connection.clock = GatewayClock(
            stack.url, ReferenceClock(wall_s=lambda: wall_s() + ahead_s)
        )
        for _ in range(3):
            await gateway.outcomes(REF)

    side = "ahead" if ahead_s > 0 else "behind"
    name = "agent with the API key test"
    assert told == [(SecurityKind.CLOCK_WRONG, "clock", name, side)] * 2
    assert caplog.text.count("gateway.clock_differs") == 1
    problem = gateway.connection.clock.problem
    assert ("ahead of that of the gateway" in problem) is (ahead_s > 0)


@pytest.mark.parametrize("text", ["", "7200", "+", "+1e9", "+7200.5", "-" + "9" * 30])
async def test_an_offset_without_number_is_ignored(stack: ApiStack, text: str) -> None:
    async def report(*_: str) -> None:
        raise AssertionError(text)

    stack.api.report = report
    headers = {"Authorization": f"Bearer {stack.key()}", CLOCK_HEADER: text}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers) as client:
        assert (await client.get("/v1/approvals")).status_code == 200


@pytest.mark.parametrize("date", ["", "never", "Thu, 99 Nov 2026 12:00:00 GMT", "0"])
def test_a_date_that_is_none_says_nothing(date: str) -> None:
    clock = GatewayClock("https://gateway.example")
    clock.answered(date, clock.asking())
    assert clock.problem == ""


def test_a_corrected_clock_is_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = GatewayClock(
        "https://gateway.example", ReferenceClock(wall_s=lambda: 1_000_000 + set_by[0])
    )
    set_by = [0]
    date = "Mon, 12 Jan 1970 13:46:40 GMT"
    for set_by[0] in (7200, 7200, 0, 0):
        clock.answered(date, clock.asking())

    assert clock.problem == ""
    assert caplog.text.count("gateway.clock_differs") == 1
    assert caplog.text.count("gateway.clock_agrees") == 1


@pytest.mark.parametrize("ahead_s", [TWO_HOURS, -TWO_HOURS])
async def test_a_call_whose_receipt_is_out_of_time_here_waits_for_the_clock(
    stack: ApiStack, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = stack.harness.store.keyring
    assert keyring
    known = [key.text for key in keyring.verifying(Role.GATEWAY)]
    gateway = HttpGateway(stack.url, stack.key(), receipt_keys=known)
    [verdict] = await gateway.submit(Turn(ref=REF, calls=(CALL,)))
    click = await stack.harness.click(verdict)
    await stack.harness.reviews.decide(click, Approve(), ANA)
    claim = claim_of(REF, verdict)
    with monkeypatch.context() as patch:
        moved = SimpleNamespace(time=lambda: wall_s() + ahead_s)
        patch.setattr(http_gateway, "time", moved)
        gateway.connection.clock = GatewayClock(
            stack.url, ReferenceClock(wall_s=moved.time)
        )
        with pytest.raises(ClockWrong, match="it runs once the clock is right"):
            await gateway.claim(claim)

    item = await stack.harness.item(verdict.item_id)
    assert item.state is ItemState.AUTHORIZED, "given back, and not in doubt"
    assert isinstance(await gateway.claim(claim.with_(owner="1" * 32)), Claimed)
    await gateway.aclose()


async def test_a_certificate_that_is_out_of_time_names_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _ = make_certificate(tmp_path, days=-2)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    outgoing.trusted.cache_clear()
    async with receiving(tmp_path) as server:
        connection = HttpConnection(server.url("localhost", ""), "tk_1")
        with pytest.raises(StoreUnavailable, match="by the clock of this machine"):
            await connection.ask(http_api.OUTCOMES, REF)
        await connection.aclose()
    outgoing.trusted.cache_clear()
