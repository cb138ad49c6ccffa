"""Ask triage about one call with a timeout, and parse its reply.

Failures are returned, not raised. A reply can only raise the tier.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Protocol, cast

from pydantic import BaseModel, Field

from keyturn.gateway.background import begun
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import Record, Tier, join
from keyturn.gateway.triage.request import TriageRequest

logger = logging.getLogger(__name__)


class Triage(Protocol):
    """An opinion on calls, usually a model's, that can only ask for more.

    No protection relies on it. `parse_assessment`
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
    has_coroutine = iscoroutinefunction(getattr(found, "assess", None))
    if isinstance(found, type) or not has_coroutine:
        raise SettingsError(
            f"'triage': {name} is no object with a coroutine 'assess'; give a "
            "ChatModelTriage(model), or another one."
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
    task = contextvars.Context().run(begun, _assess(triage, request))
    try:
        # wait, not wait_for: that waits for the cancelled task to end, and a task that
        # ignores its cancellation would block the agent.
        await asyncio.wait([task], timeout=within.total_seconds())
    finally:
        task.cancel()
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


def _failed(why: TriageFailure, error: str = "") -> TriageResponse:
    # Only the type is logged: the text of an error may contain arguments of the call.
    logger.warning("triage.failed reason=%s error=%s", why, error)
    return TriageResponse(failure=why)


MAX_SCORE = 100
"""The score of the most urgent calls."""

MAX_RATIONALE = 300
"""Longest stored rationale, in characters."""

MAX_TEXT = 20_000
"""Only this many characters at the end of a string are searched."""


class Assessment(Record):
    """Triage's opinion of one call.

    Attributes:
        raise_to: the tier that it asks for; None asks for nothing.
        score: urgency for people, 0 to 100; it only orders queues.
        rationale: the reason, in one line without hidden characters. Untrusted: the
            author of the arguments can influence it.
    """

    raise_to: Tier | None = None
    score: int = Field(default=0, ge=0, le=MAX_SCORE)
    rationale: str = ""


def parse_assessment(raw: object) -> Assessment | None:
    """Return the assessment in the result of triage; None if there is none.

    Never raises. An unknown tier and an invalid score are ignored. Of several
    assessments in one text the most cautious counts, so that quoting the arguments
    first hides nothing.

    Args:
        raw: an `Assessment`, a mapping or model with its names, or text with JSON.
    """
    try:
        return most_cautious(_read(found) for found in _objects(raw))
    except Exception:  # noqa: BLE001 - foreign objects may raise anything
        return None


def most_cautious(assessments: Iterable[Assessment | None]) -> Assessment | None:
    """Return the assessment that asks for most; None if there is none."""
    # The most cautious: text of the call, quoted by the model, may contain one as well.
    return max((one for one in assessments if one), key=_caution, default=None)


def apply_assessment(
    tier: Tier, assessment: Assessment | None, *, may_deny: bool
) -> Tier:
    """Return the tier of a call after its assessment; it is never lower than before.

    Args:
        tier: the tier without triage.
        assessment: None changes nothing.
        may_deny: the policy allows triage to refuse; otherwise ``deny`` counts as
            ``escalate``.
    """
    if assessment is None or assessment.raise_to is None:
        return tier
    asked = assessment.raise_to
    # Not ignored: if the model would refuse the call, people look at it.
    if asked is Tier.DENY and not may_deny:
        asked = Tier.ESCALATE
    return join(tier, asked)


def _caution(assessment: Assessment) -> tuple[int, int]:
    asked = assessment.raise_to
    return (-1 if asked is None else asked.rank, assessment.score)


def _objects(raw: object) -> Iterator[Mapping[object, object]]:
    if isinstance(raw, BaseModel):
        raw = raw.model_dump()
    if isinstance(raw, Mapping):
        yield cast("Mapping[object, object]", raw)
    elif isinstance(raw, str):
        # The end, not the beginning: a model reasons first and answers last.
        yield from _in_text(raw[-MAX_TEXT:])


def _in_text(text: str) -> Iterator[Mapping[object, object]]:
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        # A brace that opens no object, or an object around others: search inside it.
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield found
            if _read(found) is None:
                end = at + 1
        at = text.find("{", end)


def _read(found: Mapping[object, object]) -> Assessment | None:
    raise_to, score = _tier(found.get("raise_to")), _score(found.get("score"))
    if raise_to is None and score is None:
        return None
    return Assessment(
        raise_to=raise_to,
        score=score or 0,
        rationale=_rationale(found.get("rationale")),
    )


def _tier(value: object) -> Tier | None:
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    # An unknown word asks for nothing; no protection relies on triage.
    return Tier(word) if word in set(Tier) else None


def _score(value: object) -> int | None:
    # True would be a score of 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    # Clamped before int(), which fails on infinity.
    return int(min(max(value, 0), MAX_SCORE))


def _rationale(value: object) -> str:
    if not isinstance(value, str):
        return ""
    # Unprintable characters could hide or reverse the text after them.
    plain = "".join(one if one.isprintable() else " " for one in value[:MAX_TEXT])
    line = " ".join(plain.split())
    return line if len(line) <= MAX_RATIONALE else f"{line[: MAX_RATIONALE - 1]}…"
