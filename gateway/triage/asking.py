"""Ask triage about one call with a timeout; failures are returned, not raised."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import timedelta
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Protocol, cast

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.triage.assessment import Assessment, parse_assessment
from keyturn.gateway.triage.request import TriageRequest

logger = logging.getLogger(__name__)


class Triage(Protocol):
    """An opinion on calls, usually a model's, that can only ask for more.

    Nothing relies on it. `keyturn.gateway.triage.assessment.parse_assessment` reads
    what it returns; an error, a time-out or an invalid answer changes nothing.
    """

    async def assess(self, request: TriageRequest) -> object:
        """Return an `Assessment`, a mapping with its names, or JSON as text.

        It runs in the event loop in which the agent's turn is evaluated, which it must
        not block, is cancelled at its time-out, and sees none of the agent's run.
        Several calls are put to it at the same time.

        Args:
            request: the call as a reviewer may see it. Its texts are untrusted.
        """
        ...


class TriageFailure(StrEnum):
    """Why there is no assessment."""

    NOT_CONFIGURED = "not_configured"
    """The policy asks for triage, and none is set."""

    TIMEOUT = "timeout"
    ERROR = "error"
    INVALID = "invalid"


class TriageResponse(Record):
    """What triage answered: its assessment, or why there is none."""

    assessment: Assessment | None = None
    failure: TriageFailure | None = None


def require_triage(found: object, name: str) -> Triage:
    """Return an object that can be asked as triage.

    Checked where it is given: a failure of triage never stops a turn, so one that can
    never answer would be noticed only in the log.

    Raises:
        SettingsError: it has no coroutine ``assess``; ``name`` says what was given.
    """
    if isinstance(found, type):
        raise SettingsError(f"'triage': {name} is a class; give an object of it.")
    if not iscoroutinefunction(getattr(found, "assess", None)):
        raise SettingsError(
            f"'triage': {name} is a {type(found).__name__} without a coroutine "
            "'assess'; give a ChatModelTriage(model), or an object of your own with "
            "one."
        )
    return cast("Triage", found)


async def ask(
    triage: Triage | None, request: TriageRequest, within: timedelta
) -> TriageResponse:
    """Ask, and wait no longer than the time-out; whatever goes wrong is a failure.

    Only a cancellation of the caller goes through. Triage that raises, that cancels
    itself, or that does not stop when it is cancelled costs the time-out at most. It
    runs in an empty context, so that a model it calls reports nothing into the run of
    the agent that waits.

    Args:
        triage: None is a failure.
        request: the call.
        within: the time-out; zero or less asks nothing.
    """
    if triage is None:
        return _failed(TriageFailure.NOT_CONFIGURED)
    if within <= timedelta():
        return _failed(TriageFailure.TIMEOUT)
    # Through `_assess`, so that triage that is no coroutine, or raises when it is
    # called, fails inside the task.
    task = asyncio.create_task(_assess(triage, request), context=contextvars.Context())
    try:
        # wait and not wait_for, which waits for the cancelled task to end: one that
        # swallows its cancellation would hold up the agent.
        await asyncio.wait([task], timeout=within.total_seconds())
    finally:
        task.cancel()
        task.add_done_callback(_forget)
    if not task.done():
        return _failed(TriageFailure.TIMEOUT)
    # A task that cancelled itself has no exception to ask for: asking would raise here.
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        return _failed(TriageFailure.ERROR, type(error).__name__)
    assessment = parse_assessment(task.result())
    if assessment is None:
        return _failed(TriageFailure.INVALID)
    return TriageResponse(assessment=assessment)


async def _assess(triage: Triage, request: TriageRequest) -> object:
    return await triage.assess(request)


def _forget(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()  # or asyncio would report it, with whatever text it has


def _failed(why: TriageFailure, error: str = "") -> TriageResponse:
    # The text of an error may hold arguments of the call: only its type is logged.
    logger.warning("triage.failed reason=%s error=%s", why, error)
    return TriageResponse(failure=why)
