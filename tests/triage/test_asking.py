"""For any triage, asking it ends in time and never in an error."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import timedelta
from typing import Any

import pytest

from keyturn import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.triage.asking import TriageFailure, ask, require_triage
from keyturn.gateway.triage.request import TriageRequest

REQUEST = TriageRequest(agent="a", tool="t", tier=Tier.APPROVE, hour_utc=0)
SOON = timedelta(milliseconds=50)
LONG = timedelta(seconds=30)
WHO = contextvars.ContextVar("WHO", default="nobody")


class Odd(BaseException):
    """An error that is no `Exception`."""


class Played:
    """Triage with a configured answer."""

    def __init__(self, given: Any = None) -> None:
        self.given = given
        self.heard: list[TriageRequest] = []

    async def assess(self, request: TriageRequest) -> object:
        self.heard.append(request)
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


class Synchronous:
    """Triage whose method is no coroutine, so nothing could be awaited."""

    def assess(self, request: TriageRequest) -> object:
        return {"raise_to": "deny"}


class Hanging:
    """Triage that never answers; a stubborn one does not even stop when cancelled."""

    def __init__(self, *, is_stubborn: bool = False) -> None:
        self.is_stubborn = is_stubborn
        self.is_over = asyncio.Event()
        self.was_cancelled = False

    async def assess(self, request: TriageRequest) -> object:
        while not self.is_over.is_set():
            try:
                await self.is_over.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                if not self.is_stubborn:
                    raise
        return {"raise_to": "deny"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Synchronous(), "is a Synchronous without a coroutine 'assess'"),
        (Played, "is a class; give an object of it"),
    ],
)
def test_triage_that_could_never_answer_is_refused_where_it_is_given(
    given: Any, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        require_triage(given, "what was given")
    with pytest.raises(SettingsError, match=words):
        Keyturn(triage=given)


@pytest.mark.parametrize(
    ("triage", "why"),
    [
        (None, TriageFailure.NOT_CONFIGURED),
        (Played("no JSON"), TriageFailure.INVALID),
        (Played(ValueError("args: 4111")), TriageFailure.ERROR),
        (Played(Odd("args: 4111")), TriageFailure.ERROR),
        (Played(asyncio.CancelledError()), TriageFailure.ERROR),
        (Synchronous(), TriageFailure.ERROR),
    ],
)
async def test_a_failure_is_a_silence_and_no_word_of_it_is_logged(
    triage: Any, why: TriageFailure, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = await ask(triage, REQUEST, LONG)

    assert (response.assessment, response.failure) == (None, why)
    assert f"triage.failed reason={why}" in caplog.text
    assert "4111" not in caplog.text


@pytest.mark.parametrize("is_stubborn", [True, False])
async def test_triage_that_hangs_costs_its_time_out(*, is_stubborn: bool) -> None:
    triage = Hanging(is_stubborn=is_stubborn)

    try:
        async with asyncio.timeout(30):
            response = await ask(triage, REQUEST, SOON)
            while not triage.was_cancelled:  # noqa: ASYNC110 - set by another task
                await asyncio.sleep(0)
    finally:
        triage.is_over.set()

    assert response.failure is TriageFailure.TIMEOUT


async def test_no_time_left_asks_nothing() -> None:
    triage = Played({"raise_to": "deny"})

    response = await ask(triage, REQUEST, timedelta())

    assert response.failure is TriageFailure.TIMEOUT
    assert not triage.heard


async def test_a_cancelled_caller_is_cancelled_and_stops_triage() -> None:
    triage = Hanging()
    caller = asyncio.create_task(ask(triage, REQUEST, LONG))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0)
    assert triage.was_cancelled


async def test_triage_sees_nothing_of_the_run_that_waits_for_it() -> None:
    class Curious:
        async def assess(self, request: TriageRequest) -> object:
            return {"raise_to": "approve", "rationale": WHO.get()}

    WHO.set("the agent's run")

    response = await ask(Curious(), REQUEST, LONG)

    assert response.assessment is not None
    assert response.assessment.rationale == "nobody"
