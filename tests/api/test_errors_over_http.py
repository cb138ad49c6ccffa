"""Each error of the services over HTTP: its status, its type, what a client does."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from keyturn import gateway as gateway_package
from keyturn.gateway import errors
from keyturn.gateway.api.server import FOR_THE_OPERATOR
from keyturn.gateway.client import bridge
from keyturn.gateway.client.bridge import Awaiting, ask_with_retries
from keyturn.gateway.client.http_connection import TRIES
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.documents import BadDocument, Problem
from keyturn.gateway.errors import (
    CorruptRecord,
    KeyturnError,
    NotAllowed,
    StoreUnavailable,
)
from keyturn.gateway.policy.load import BadPolicy
from keyturn.gateway.protocol import http_problems
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.audit.files import Damaged
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness

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
    async def fail(*_: object, **_named: object) -> None:
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
async def test_it_is_raised_as_in_one_process_and_asked_again_where_that_helps(
    failing: Failing, row: Row
) -> None:
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
