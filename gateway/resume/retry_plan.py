"""Plan the retry of a failed run: the backoff, or parking as a dead letter."""

from __future__ import annotations

from datetime import timedelta

from twokey.gateway.resume.diagnosis import Diagnosis
from twokey.gateway.resume.known_errors import ErrorKind
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.store.stalled import RunState, StalledRun

_MOST_DOUBLINGS = 20
_LONGEST_REASON = 500


def failed_again(
    before: StalledRun,
    diagnosis: Diagnosis,
    settings: RetrySettings,
    *,
    now_ms: int,
    approved_until_ms: int,
    spread: float,
    is_last: bool = False,
) -> StalledRun:
    """Return a run after one more failure.

    Args:
        before: as it was; `first_failure` for one that had not failed.
        diagnosis: what is known of the error.
        settings: how long is retried.
        now_ms: the store's clock.
        approved_until_ms: when the last authorization of the run ends; 0 for none.
        spread: what part of a pause is waited, so that not all runs come at once.
        is_last: the run is not retried, whatever the error is.
    """
    # A permanent error parked it, and something new was tried since, such as a message:
    # its time starts over. What could have passed was woken by a start, for one
    # attempt.
    starts_over = before.state is RunState.PARKED and not before.can_pass
    since_ms = now_ms if starts_over else before.retried_since_ms
    attempts = 1 if starts_over else before.attempts + 1
    is_unknown = diagnosis.kind is ErrorKind.UNKNOWN
    limit = settings.unknown_limit if is_unknown else settings.limit
    until_ms = since_ms + milliseconds(limit)
    if diagnosis.can_pass:
        # People approved a call of it: that is worth retrying for as long as they
        # allowed.
        until_ms = max(until_ms, approved_until_ms)
    is_parked = is_last or diagnosis.is_final or now_ms >= until_ms
    pause_ms = _pause_ms(attempts, settings) * spread
    # After the spread, which must not shorten what a service asked for.
    pause_ms = max(pause_ms, 1000 * diagnosis.retry_after_s)
    # No later than the limit, so that the last attempt is made when it is reached.
    next_ms = 0 if is_parked else min(until_ms, now_ms + max(1, int(pause_ms)))
    is_late = next_ms - before.since_ms >= milliseconds(settings.notify_after)
    state = RunState.PARKED if is_parked else RunState.WAITING
    return before.with_(
        state=state,
        at_ms=before.at_ms if state is before.state else now_ms,
        trouble=diagnosis.kind.value,
        reason=diagnosis.reason[:_LONGEST_REASON],
        can_pass=not diagnosis.is_final,
        attempts=attempts,
        retried_since_ms=since_ms,
        next_ms=next_ms,
        until_ms=0 if is_parked else until_ms,
        unserved_since_ms=0,
        is_listed=True,
        is_announced=before.is_announced or is_parked or is_late,
    )


def _pause_ms(attempts: int, settings: RetrySettings) -> int:
    # Bounded: attempts may go on for days, and the integer would double with each.
    doubled = 1 << min(attempts - 1, _MOST_DOUBLINGS)
    return min(milliseconds(settings.first) * doubled, milliseconds(settings.longest))


def milliseconds(time: timedelta) -> int:
    """Return a length of time in milliseconds."""
    return int(time.total_seconds() * 1000)


def report_text(run: StalledRun) -> str:
    """Return what people read of a run; they are told again when it differs."""
    return f"{run.state} {run.until_ms} {run.reason}"
