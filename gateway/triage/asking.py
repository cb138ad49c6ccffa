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

    No protection relies on it. `keyturn.gateway.triage.assessment.parse_assessment`
    parses the result. An error, a time-out or an invalid answer changes nothing.
    """

    async def assess(self, request: TriageRequest) -> object:
        """Return an `Assessment`, a mapping with its names, or JSON as text.

        It runs in the event loop that evaluates the agent's turn, so it must not block.
        It is cancelled at its time-out, runs outside the agent's context, and is called
        for several calls concurrently.

        Args:
            request: the call as shown to reviewers. Its texts are untrusted.
        """
        ...


class TriageFailure(StrEnum):
    """Why there is no assessment."""

    NOT_CONFIGURED = "not_configured"
    """The policy uses triage, but none is set."""

    TIMEOUT = "timeout"
    ERROR = "error"
    INVALID = "invalid"


class TriageResponse(Record):
    """Result of triage: an assessment, or the reason why there is none."""

    assessment: Assessment | None = None
    failure: TriageFailure | None = None


def require_triage(found: object, name: str) -> Triage:
    """Check an object that is set as triage, and return it.

    Checked early: a failure of triage never stops a turn, so an unusable object would
    be noticed only in the log.

    Raises:
        SettingsError: when it has no coroutine ``assess``; ``name`` is the setting or
            argument.
    """
    if isinstance(found, type):
        raise SettingsError(f"'triage': {name} is a class; give an object of it.")
    if not iscoroutinefunction(getattr(found, "assess", None)):
        raise SettingsError(
            f"'triage': {name} is a {type(found).__name__} without a coroutine "
            "'assess'; give a ChatModelTriage(model), or another object with "
            "one."
        )
    return cast("Triage", found)


async def ask(
    triage: Triage | None, request: TriageRequest, within: timedelta
) -> TriageResponse:
    """Ask for an assessment within the time-out; every error becomes a failure.

    Only a cancellation of the caller is raised. Triage that raises, cancels itself or
    ignores its cancellation takes the time-out at most. It runs in an empty context, so
    that its model is not traced as part of the waiting agent's run.

    Args:
        triage: None is a failure.
        request: the call.
        within: the time-out; zero or less skips the call.
    """
    if triage is None:
        return _failed(TriageFailure.NOT_CONFIGURED)
    if within <= timedelta():
        return _failed(TriageFailure.TIMEOUT)
    # Through `_assess`, so that triage that is not a coroutine, or raises at once,
    # fails inside the task.
    task = asyncio.create_task(_assess(triage, request), context=contextvars.Context())
    try:
        # wait, not wait_for: that waits for the cancelled task to end, and a task that
        # ignores its cancellation would block the agent.
        await asyncio.wait([task], timeout=within.total_seconds())
    finally:
        task.cancel()
        task.add_done_callback(_forget)
    if not task.done():
        return _failed(TriageFailure.TIMEOUT)
    # A task that cancelled itself has no exception; `exception()` would raise.
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
        task.exception()  # otherwise asyncio would log it with its text


def _failed(why: TriageFailure, error: str = "") -> TriageResponse:
    # Only the type is logged: the text of an error may contain arguments of the call.
    logger.warning("triage.failed reason=%s error=%s", why, error)
    return TriageResponse(failure=why)
