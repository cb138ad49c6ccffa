"""Why a request over HTTP was refused (RFC 9457), and how an error travels."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.gateway.errors import (
    BadJson,
    KeyRefused,
    LeaseLost,
    NotAllowed,
    StoreUnavailable,
    TwokeyError,
)
from twokey.gateway.protocol.records import Record

PROBLEMS = "https://twokey.dev/problems/"
PROBLEM_TYPE = "application/problem+json"
"""RFC 9457 section 3."""


class Problem(Record):
    """Why a request was refused (RFC 9457): a sentence for people, a type for code."""

    type: str
    title: str
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the end of its type's URL, its title and its status."""

    name: str
    title: str
    status: int

    @property
    def type(self) -> str:
        """Return the URL by which programs know it."""
        return f"{PROBLEMS}{self.name}"


UNAUTHENTICATED = ProblemKind("unauthenticated", "No valid API key", 401)
NO_TOKEN = ProblemKind("no-token", "No valid token of a person", 401)
FORBIDDEN = ProblemKind("forbidden", "This key may not do that", 403)
PEOPLE_DECIDE = ProblemKind("people-decide", "People decide, in Slack", 403)
NOT_ALLOWED = ProblemKind("not-allowed", "This person may not decide that", 403)
NOT_FOUND = ProblemKind("not-found", "Not found", 404)
WRONG_METHOD = ProblemKind("wrong-method", "This path takes another method", 405)
TOO_SLOW = ProblemKind("too-slow", "The request came too slowly", 408)
REFUSED = ProblemKind("refused", "The gateway refuses this", 409)
LEASE_LOST = ProblemKind("lease-lost", "The lease is lost", 409)
UNDER_WAY = ProblemKind("under-way", "The first attempt is being answered", 409)
STALE = ProblemKind("stale", "The approval has changed since it was read", 409)
SETTLED = ProblemKind("settled", "The call does not wait any more", 409)
EXPIRED = ProblemKind("expired", "The time to decide is over", 409)
TOO_LARGE = ProblemKind("too-large", "The request is too large", 413)
KEY_REUSED = ProblemKind(
    "key-reused", "The Idempotency-Key was used for another request", 422
)
INVALID = ProblemKind("invalid", "The decision is not valid", 422)
TOO_MANY = ProblemKind("too-many-requests", "Too many requests", 429)
MALFORMED = ProblemKind("malformed", "The request cannot be read", 400)
FAILED = ProblemKind("failed", "The gateway failed", 500)
UNAVAILABLE = ProblemKind("unavailable", "The gateway cannot answer now", 503)
STOPPING = ProblemKind("stopping", "The gateway is stopping", 503)

_KINDS: tuple[tuple[type[TwokeyError], ProblemKind], ...] = (
    (LeaseLost, LEASE_LOST),
    (NotAllowed, REFUSED),
    (BadJson, MALFORMED),
)
"""The kind of each error that has one of its own; every other is an outage."""


def kind_of(error: TwokeyError) -> ProblemKind:
    """Return the kind of problem that an error of the gateway is."""
    return next((kind for of, kind in _KINDS if isinstance(error, of)), UNAVAILABLE)


def problem(kind: ProblemKind, detail: str) -> Problem:
    """Return a problem of a kind."""
    return Problem(type=kind.type, title=kind.title, status=kind.status, detail=detail)


_OF_THE_KEY = {UNAUTHENTICATED, FORBIDDEN}
_FINAL = {
    *(NOT_FOUND, WRONG_METHOD, REFUSED, STALE, SETTLED, EXPIRED, TOO_LARGE),
    *(KEY_REUSED, INVALID, MALFORMED, NO_TOKEN, PEOPLE_DECIDE, NOT_ALLOWED),
}
"""What another attempt would not change."""


def error_of(found: Problem) -> TwokeyError:
    """Return the error that a client raises for a problem.

    What another attempt may change is an outage, also a kind that is not known.
    """
    name = found.type.removeprefix(PROBLEMS)
    if name == LEASE_LOST.name:
        return LeaseLost()
    if any(kind.name == name for kind in _OF_THE_KEY):
        return KeyRefused(found.detail)
    if any(kind.name == name for kind in _FINAL):
        return NotAllowed(found.detail)
    return StoreUnavailable(found.detail)
