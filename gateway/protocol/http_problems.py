"""Refusals of HTTP requests (RFC 9457), and their conversion to errors and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from pydantic import ConfigDict

from keyturn.gateway.errors import (
    AlreadySpent,
    BadJson,
    BadStep,
    BotKeyUnknown,
    CorruptRecord,
    GraphError,
    IllegalTransition,
    KeyRefused,
    KeyturnError,
    LeaseLost,
    NotAllowed,
    NotConfirmed,
    NotVerified,
    PolicyError,
    RefReused,
    SettingsError,
    StoreUnavailable,
    ThreadUnavailable,
    TooManySpeakers,
    Unanswered,
    UnsafeStore,
)
from keyturn.gateway.protocol.records import Record

_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
PROBLEMS = "urn:keyturn:problem:"
PROBLEM_TYPE = "application/problem+json"
"""RFC 9457 section 3."""


class Problem(Record):
    """A refused request (RFC 9457): a sentence for people, a type for code.

    Attributes:
        approval: id of the approval concerned; "" for all other problems.
    """

    # RFC 9457, section 3.2: clients ignore unknown members.
    model_config = ConfigDict(extra="ignore")

    type: str
    title: str
    status: int
    detail: str
    approval: str = ""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the end of its type's URL, its title and its status."""

    name: str
    title: str
    status: int

    @property
    def can_pass(self) -> bool:
        """Return True if the same request may succeed later."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.status in _LATER

    @property
    def type(self) -> str:
        """Return the URL that identifies this kind in programs."""
        return f"{PROBLEMS}{self.name}"


UNAUTHENTICATED = ProblemKind("unauthenticated", "No valid API key", 401)
NO_TOKEN = ProblemKind("no-token", "No valid token of a person", 401)
FORBIDDEN = ProblemKind("forbidden", "This key may not do that", 403)
PEOPLE_DECIDE = ProblemKind("people-decide", "People decide, in Slack", 403)
NOT_ALLOWED = ProblemKind("not-allowed", "This person may not decide that", 403)
NOT_FOUND = ProblemKind("not-found", "Not found", 404)
WRONG_METHOD = ProblemKind("wrong-method", "This path takes another method", 405)
TOO_SLOW = ProblemKind("too-slow", "The request came too slowly", 408)
REF_REUSED = ProblemKind("ref-reused", "The ref was used for other calls", 409)
REFUSED = ProblemKind("refused", "The gateway refuses this", 409)
CORRUPT_RECORD = ProblemKind("corrupt-record", "The stored record is corrupt", 409)
ILLEGAL_TRANSITION = ProblemKind(
    "illegal-transition", "The call is not in a state that allows this", 409
)
TOO_MANY_SPEAKERS = ProblemKind(
    "too-many-speakers", "Too many people have spoken in this thread", 409
)
LEASE_LOST = ProblemKind("lease-lost", "The lease is lost", 409)
STALE = ProblemKind("stale", "The approval has changed since it was read", 409)
SETTLED = ProblemKind("settled", "The call does not wait any more", 409)
EXPIRED = ProblemKind("expired", "The time to decide is over", 409)
TOO_LARGE = ProblemKind("too-large", "The request is too large", 413)
INVALID = ProblemKind("invalid", "The decision is not valid", 422)
TOO_MANY = ProblemKind("too-many-requests", "Too many requests", 429)
MALFORMED = ProblemKind("malformed", "The request cannot be read", 400)
FAILED = ProblemKind("failed", "The gateway failed", 500)
UNAVAILABLE = ProblemKind("unavailable", "The gateway cannot answer now", 503)
NOT_CONFIRMED = ProblemKind(
    "not-confirmed", "It is kept, and no replica has confirmed it", 503
)
UNANSWERED = ProblemKind("unanswered", "It is not known whether this was kept", 503)
BOT_KEY_UNKNOWN = ProblemKind(
    "bot-key-unknown", "This key of the bot is not known here yet", 503
)
STOPPING = ProblemKind("stopping", "The gateway is stopping", 503)

KINDS_OF_ERRORS: Mapping[type[KeyturnError], ProblemKind] = {
    LeaseLost: LEASE_LOST,
    RefReused: REF_REUSED,
    TooManySpeakers: TOO_MANY_SPEAKERS,
    NotAllowed: REFUSED,
    BadJson: MALFORMED,
    BadStep: REFUSED,
    AlreadySpent: REFUSED,
    GraphError: REFUSED,
    NotVerified: REFUSED,
    CorruptRecord: CORRUPT_RECORD,
    IllegalTransition: ILLEGAL_TRANSITION,
    NotConfirmed: NOT_CONFIRMED,
    Unanswered: UNANSWERED,
    BotKeyUnknown: BOT_KEY_UNKNOWN,
    StoreUnavailable: UNAVAILABLE,
    # The operator of the gateway fixes these; a client can only wait.
    PolicyError: UNAVAILABLE,
    SettingsError: UNAVAILABLE,
    ThreadUnavailable: UNAVAILABLE,
    UnsafeStore: UNAVAILABLE,
}
"""Kind of problem for each error of the services, or for its base class."""


def kind_of(error: KeyturnError) -> ProblemKind:
    """Return the kind of problem of a gateway error.

    The nearest listed class of the error decides; without one it is an outage.
    """
    listed = (one for one in type(error).__mro__ if issubclass(one, KeyturnError))
    found = map(KINDS_OF_ERRORS.get, listed)
    return next((kind for kind in found if kind is not None), UNAVAILABLE)


def problem(kind: ProblemKind, detail: str, approval: str = "") -> Problem:
    """Return a problem of a kind."""
    return Problem(
        type=kind.type,
        title=kind.title,
        status=kind.status,
        detail=detail,
        approval=approval,
    )


_GENERAL = (MALFORMED, REFUSED, UNAVAILABLE)
"""Kinds of several errors: a client raises the error of their effect."""

_RAISED: Mapping[ProblemKind, type[KeyturnError]] = {
    **{kind: error for error, kind in KINDS_OF_ERRORS.items() if kind not in _GENERAL},
    **dict.fromkeys((UNAUTHENTICATED, FORBIDDEN), KeyRefused),
}

KINDS = {
    one.type: one for one in tuple(globals().values()) if isinstance(one, ProblemKind)
}


def error_of(found: Problem) -> KeyturnError:
    """Return the error that a client raises for a problem, as in the same process.

    Problems that may pass, and unknown kinds, become an outage.
    """
    kind = KINDS.get(found.type)
    if kind is None:
        return StoreUnavailable(found.detail)
    general = StoreUnavailable if kind.can_pass else NotAllowed
    raised = _RAISED.get(kind, general)
    # Without the constructor: the text comes from the gateway.
    error = raised.__new__(raised, found.detail)
    if isinstance(error, CorruptRecord):
        error.approval = found.approval
    return error
