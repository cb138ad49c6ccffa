"""Each error of the services over HTTP: its status, its type, what a client does."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest
from aiohttp import web

from keyturn import gateway as gateway_package
from keyturn.gateway import errors
from keyturn.gateway.api.server import FOR_THE_OPERATOR
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.client import bridge, http_gateway, outgoing
from keyturn.gateway.client.bridge import Awaiting, ask_with_retries
from keyturn.gateway.client.http_connection import TRIES, GatewayClock, HttpConnection
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.documents import BadDocument, Problem
from keyturn.gateway.errors import (
    ClockWrong,
    CorruptRecord,
    KeyturnError,
    NotAllowed,
    StoreUnavailable,
)
from keyturn.gateway.policy.load import BadPolicy
from keyturn.gateway.protocol import http_api, http_problems
from keyturn.gateway.protocol.http_api import CLOCK_HEADER
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.audit.files import Damaged
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness, claim_of
from tests.webhooks.receiver import make_certificate, receiving

SERVICES = (
    *("approvals", "documents", "errors", "policy", "protocol", "service", "store"),
    *("triage", "trust"),
)
"""The parts of the gateway below its HTTP API."""


class Row(NamedTuple):
    """What becomes of an error.

    Attributes:
        error: as the services raise it.
        status: of the answer.
        problem: the end of the problem's type.
        raised: by the client in another process.
        again: the client asks again by itself.
    """

    error: KeyturnError
    status: int
    problem: str
    raised: type[KeyturnError]
    again: bool = False


FORGED = errors.ForgedRecord("ap_1", "why", is_replayed=True)
ILLEGAL = errors.IllegalTransition("executed", "claim")
# Answers: a repeated request gets the same one.
REFUSALS = (
    *(NotAllowed("no"), errors.NotStarted("no"), errors.UngatedTool("a", "t")),
    *(errors.AlreadySpent("ap_1", 0, 1, 1), errors.KeyRefused("no")),
    *(errors.BadStep("no"), errors.GraphError("no")),
    errors.NotVerified("unsigned", "no"),
)
# A problem that the operator of the gateway fixes is an outage for the client: a
# repeated request may be answered.
OUTAGES = (
    *(StoreUnavailable("no"), errors.AuditUnreadable("x"), errors.SettingsError("no")),
    *(errors.PolicyError("no"), BadPolicy((Problem("policy.yml:1", "no"),))),
    *(BadDocument([Problem("no", "policy.yml")]), errors.ClockWrong("no")),
    *(errors.UnsafeStore("no"), errors.StateUnknown("no")),
    *(errors.ThreadUnavailable("no"), errors.ThreadUnknown("a", "t")),
    Damaged(Path("default.tree"), "entry 1 was changed", 1),
)
UNANSWERED = errors.Unanswered("a", "b")
ROWS = (
    *(Row(error, 409, "refused", NotAllowed) for error in REFUSALS),
    Row(errors.RefReused("m", "c"), 409, "ref-reused", errors.RefReused),
    Row(errors.TooManySpeakers(9), 409, "too-many-speakers", errors.TooManySpeakers),
    Row(CorruptRecord("ap_1"), 409, "corrupt-record", CorruptRecord),
    # How it was forged is for those who run the gateway.
    Row(FORGED, 409, "corrupt-record", CorruptRecord),
    Row(ILLEGAL, 409, "illegal-transition", errors.IllegalTransition),
    Row(errors.LeaseLost(), 409, "lease-lost", errors.LeaseLost),
    Row(errors.BadJson("it is a list", "/a"), 400, "malformed", NotAllowed),
    Row(errors.InexactNumber("it is large", "/a"), 400, "malformed", NotAllowed),
    *(Row(e, 503, "unavailable", StoreUnavailable, again=True) for e in OUTAGES),
    # The request may have been stored.
    Row(errors.NotConfirmed(), 503, "not-confirmed", errors.NotConfirmed, again=True),
    Row(UNANSWERED, 503, "unanswered", errors.Unanswered, again=True),
    Row(errors.KeptInPart("a"), 503, "unanswered", errors.Unanswered, again=True),
    Row(
        errors.BotKeyUnknown("no"),
        503,
        "bot-key-unknown",
        errors.BotKeyUnknown,
        again=True,
    ),
)


@dataclass
class Counting:
    """Counts the requests; its pauses are over at once."""

    answers: list[web.StreamResponse] = field(default_factory=list[web.StreamResponse])

    @web.middleware
    async def between(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        reply = await handler(request)
        if "Retry-After" in reply.headers:
            reply.headers["Retry-After"] = "0"
        self.answers.append(reply)
        return reply


@dataclass
class Failing:
    """A gateway whose services raise an error, asked from another process."""

    counting: Counting
    gateway: HttpGateway


@pytest.fixture
async def failing(
    store: Store, row: Row, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Failing]:
    async def fail(*_: object) -> None:
        raise row.error

    monkeypatch.setattr(AgentService, "note", fail)
    monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.0)
    counting = Counting()
    stack: ApiStack
    async with (
        serving(ServiceHarness(store), [counting.between]) as stack,
        stack.gateway() as gateway,
    ):
        yield Failing(counting, gateway)


def _name(row: Row) -> str:
    return type(row.error).__name__


def _derived(base: type[KeyturnError]) -> Iterator[type[KeyturnError]]:
    for each in base.__subclasses__():
        yield each
        yield from _derived(each)


def test_each_error_of_the_services_has_a_row() -> None:
    places = tuple(f"{gateway_package.__name__}.{part}" for part in SERVICES)
    for found in pkgutil.walk_packages(gateway_package.__path__, "keyturn.gateway."):
        if found.name.startswith(places):
            importlib.import_module(found.name)

    known = {
        error.__name__
        for error in _derived(KeyturnError)
        # One with an underscore does not leave its module.
        if error.__module__.startswith(places) and not error.__name__.startswith("_")
    }
    assert known == {*map(_name, ROWS)}


@pytest.mark.parametrize("row", ROWS, ids=_name)
async def test_errors_are_raised_as_in_one_process(failing: Failing, row: Row) -> None:
    with pytest.raises(KeyturnError) as raised:
        await failing.gateway.note("support")

    assert type(raised.value) is row.raised
    assert isinstance(row.error, row.raised) or row.raised in {
        StoreUnavailable,
        NotAllowed,
    }
    is_told = isinstance(row.error, StoreUnavailable) or not row.again
    assert str(raised.value) == (str(row.error) if is_told else FOR_THE_OPERATOR)
    if isinstance(raised.value, CorruptRecord):
        assert raised.value.approval == "ap_1"
    assert len(failing.counting.answers) == (TRIES if row.again else 1)
    (reply, *_) = failing.counting.answers
    assert isinstance(reply, web.Response)
    assert reply.text
    found = http_problems.Problem.model_validate_json(reply.text)
    assert (reply.status, found.status) == (row.status, row.status)
    assert found.type == f"{http_problems.PROBLEMS}{row.problem}"
    assert ("Retry-After" in reply.headers) is row.again


@pytest.mark.parametrize("row", [ROWS[0], ROWS[-1]], ids=_name)
async def test_a_final_refusal_is_asked_once(failing: Failing, row: Row) -> None:
    with pytest.raises(row.raised):
        await ask_with_retries(Awaiting(), lambda: failing.gateway.note("support"))

    asked = bridge.PORT_TRIES * TRIES if row.again else 1
    assert len(failing.counting.answers) == asked


def test_a_problem_of_a_newer_gateway_is_understood() -> None:
    told = (
        '{"type": "urn:keyturn:problem:brand-new", "title": "t", "status": 409,'
        ' "detail": "it says why", "instance": "/v1/note", "more": [1]}'
    )

    found = http_problems.error_of(http_problems.Problem.model_validate_json(told))

    assert type(found) is StoreUnavailable
    assert str(found) == "it says why"


# Remote programs notice and report that their clock differs from the gateway's.


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
    await stack.harness.decide(verdict, Approve())
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
