"""Errors are classified by class, status and cause; their text is never repeated."""

from __future__ import annotations

import errno
import socket
import sqlite3
import ssl
from contextlib import closing
from typing import Any

import aiohttp
import httpx
import psycopg
import pytest
from langchain_core.exceptions import ContextOverflowError, ModelConnectionError
from langgraph.errors import GraphRecursionError
from pydantic import BaseModel, ValidationError

from keyturn.gateway.errors import GraphError, StateUnknown, StoreUnavailable
from keyturn.gateway.resume.diagnosis import (
    ErrorKind,
    at_breakpoint,
    at_limit,
    diagnose,
)
from tests.bot.strategies import CANARY

REQUEST = httpx.Request("POST", "https://model.example/v1")


class Coded(Exception):
    """An error of a library that carries an HTTP status somewhere."""

    def __init__(self, **attributes: object) -> None:
        super().__init__(CANARY)
        self.__dict__.update(attributes)


def of(status: int, **headers: str) -> httpx.HTTPStatusError:
    """Return the error of an HTTP client about a status."""
    response = httpx.Response(status, request=REQUEST, headers=headers)
    return httpx.HTTPStatusError(CANARY, request=REQUEST, response=response)


def named(module: str, *names: str) -> Exception:
    """Return an error of a library that is not installed, by its class and bases."""
    kind: Any = Exception
    for name in reversed(names):
        kind = type(name, (kind,), {"__module__": module})
    return kind(CANARY)  # type: ignore[no-any-return]


def invalid() -> ValidationError:
    """Return pydantic's error about arguments."""

    class Given(BaseModel):
        number: int

    try:
        Given.model_validate({"number": CANARY})
    except ValidationError as error:
        return error
    raise AssertionError


CAN_PASS = [
    socket.gaierror(CANARY),
    ssl.SSLEOFError(CANARY),
    OSError(errno.ENETUNREACH, CANARY),
    OSError(errno.ENOSPC, CANARY),
    TimeoutError(CANARY),
    httpx.ConnectError(CANARY),
    httpx.ReadTimeout(CANARY),
    of(408),
    of(409),
    of(429),
    of(503),
    aiohttp.ServerDisconnectedError(CANARY),
    Coded(status_code=500),
    Coded(code=429),
    Coded(code=lambda: 503, status=503),
    Coded(response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
    ModelConnectionError(CANARY),
    named("openai", "APIConnectionError", "APIError"),
    named("groq", "APITimeoutError", "APIConnectionError"),
    named("httpx2", "ConnectTimeout", "TimeoutException"),
    psycopg.OperationalError(CANARY),
    named("redis.exceptions", "ConnectionError"),
    sqlite3.OperationalError(CANARY),
    ExceptionGroup(CANARY, [TimeoutError(), of(503)]),
]
CANNOT_PASS = [
    (TypeError(CANARY), ErrorKind.CODE),
    (NotImplementedError(CANARY), ErrorKind.CODE),
    (FileNotFoundError(CANARY), ErrorKind.CODE),
    (invalid(), ErrorKind.CODE),
    (httpx.UnsupportedProtocol(CANARY), ErrorKind.CODE),
    (
        named("redis.exceptions", "AuthenticationError", "ConnectionError"),
        ErrorKind.REFUSED,
    ),
    (ContextOverflowError(CANARY), ErrorKind.REFUSED),
    (psycopg.ProgrammingError(CANARY), ErrorKind.CODE),
    (ssl.SSLCertVerificationError(CANARY), ErrorKind.REFUSED),
    (of(400), ErrorKind.REFUSED),
    (of(401), ErrorKind.REFUSED),
    (of(501), ErrorKind.REFUSED),
    (GraphRecursionError(CANARY), ErrorKind.LIMIT),
    (at_limit("t1", "a limit"), ErrorKind.LIMIT),
    (at_breakpoint("t1", is_announced=False), ErrorKind.BREAKPOINT),
    (GraphError("The graph cannot be used."), ErrorKind.GRAPH),
    (ExceptionGroup(CANARY, [TimeoutError(), KeyError(CANARY)]), ErrorKind.CODE),
]
UNKNOWN = [
    RuntimeError(CANARY),
    Coded(status_code=200),
    Coded(status_code="429"),
    named("my_shop", "OutOfStock"),
    ExceptionGroup(CANARY, [TimeoutError(), RuntimeError(CANARY)]),
]


@pytest.mark.parametrize("error", CAN_PASS)
def test_what_can_pass_is_known(error: Exception) -> None:
    found = diagnose(error)

    assert (found.kind, found.can_pass) == (ErrorKind.OUTAGE, True)
    assert not found.is_final
    assert CANARY not in found.reason


@pytest.mark.parametrize(("error", "kind"), CANNOT_PASS)
def test_what_cannot_pass_is_known(error: Exception, kind: ErrorKind) -> None:
    found = diagnose(error)

    assert (found.kind, found.is_final) == (kind, True)
    assert CANARY not in found.reason


@pytest.mark.parametrize("error", UNKNOWN)
def test_anything_else_is_unknown(error: Exception) -> None:
    found = diagnose(error)

    assert (found.kind, found.can_pass) == (ErrorKind.UNKNOWN, False)
    assert not found.is_final
    assert CANARY not in found.reason


def raised(error: Exception, *, cause: Exception, is_named: bool) -> Exception:
    """Return an error that was raised from another one, or while it was handled."""
    try:
        try:
            raise cause  # noqa: TRY301 - what is tested
        except Exception as inner:
            if is_named:
                raise error from inner
            raise error  # noqa: B904 - what is tested
    except Exception as outer:  # noqa: BLE001 - whatever was given
        return outer


def test_an_error_is_known_by_what_it_was_raised_from() -> None:
    wrapped = raised(RuntimeError(CANARY), cause=of(503), is_named=True)
    named_bug = raised(ValueError(CANARY), cause=ConnectionError(), is_named=True)
    bug = raised(KeyError(CANARY), cause=ConnectionError(), is_named=False)
    meanwhile = raised(RuntimeError(CANARY), cause=TimeoutError(), is_named=False)
    harmless = raised(RuntimeError(CANARY), cause=KeyError(), is_named=False)
    of_a_bug = raised(RuntimeError(CANARY), cause=KeyError(), is_named=True)

    assert diagnose(wrapped).kind is ErrorKind.OUTAGE
    assert diagnose(named_bug).kind is ErrorKind.OUTAGE
    assert diagnose(bug).kind is ErrorKind.CODE
    assert diagnose(meanwhile).kind is ErrorKind.OUTAGE
    assert diagnose(harmless).kind is ErrorKind.UNKNOWN
    assert diagnose(of_a_bug).kind is ErrorKind.CODE


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "999999"}, 3600.0),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({}, 0.0),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float) -> None:
    assert diagnose(of(429, **headers)).retry_after_s == seconds
    assert diagnose(of(401, **headers)).retry_after_s == 0


def test_a_class_that_is_named_like_markup_is_not_named() -> None:
    rude = type("<!channel>", (TypeError,), {"__module__": "<!here>"})

    assert diagnose(rude()).reason == "The agent's code failed (an error)."


def test_our_own_sentences_are_told() -> None:
    assert diagnose(GraphError("Use another one.")).reason == "Use another one."
    assert diagnose(StateUnknown("It is down.")).kind is ErrorKind.STATE
    assert diagnose(StoreUnavailable(CANARY)).kind is ErrorKind.STORE
    assert diagnose(StoreUnavailable(CANARY)).can_pass


def test_a_full_disk_is_told_from_a_database_that_is_locked() -> None:
    memory = sqlite3.connect(":memory:")
    memory.execute("PRAGMA max_page_count = 2")
    memory.execute("CREATE TABLE one (value)")
    with closing(memory), pytest.raises(sqlite3.OperationalError) as full:
        memory.execute("INSERT INTO one VALUES (?)", ("x" * 100_000,))

    found = diagnose(full.value)

    assert found.can_pass
    assert found.reason == (
        "Something that the agent needs is unavailable "
        "(sqlite3.OperationalError, SQLITE_FULL)."
    )


def test_wrong_sql_is_told_from_a_database_that_is_locked() -> None:
    with (
        closing(sqlite3.connect(":memory:")) as memory,
        pytest.raises(sqlite3.OperationalError) as wrong,
    ):
        memory.execute("SELECT * FROM missing")

    assert diagnose(wrong.value).kind is ErrorKind.CODE
