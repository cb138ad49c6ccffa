"""Refusals of requests, as HTTP answers."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from keyturn.gateway.protocol.http_problems import (
    FAILED,
    MALFORMED,
    PROBLEM_TYPE,
    TOO_LARGE,
    TOO_SLOW,
    ProblemKind,
    problem,
)

_OF_STATUS = {408: TOO_SLOW, 413: TOO_LARGE}
_SERVER_ERROR = 500


class Refusal(Exception):
    """A request is answered with a problem.

    Attributes:
        kind: kind of the problem.
        detail: a sentence with the next step.
        headers: headers of the answer.
        approval: id of the approval concerned, if programs need it.
    """

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        approval: str = "",
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.approval = approval
        super().__init__(detail)


def refused(refusal: Refusal) -> web.Response:
    """Return a refusal as an HTTP answer (RFC 9457)."""
    kind = refusal.kind
    found = problem(kind, refusal.detail, refusal.approval)
    return web.Response(
        text=found.model_dump_json(exclude_defaults=True),
        status=kind.status,
        content_type=PROBLEM_TYPE,
        headers=refusal.headers,
    )


def unreadable(status: int, words: str) -> web.Response:
    """Return the answer to an invalid or incomplete request."""
    kind = _OF_STATUS.get(status, FAILED if status >= _SERVER_ERROR else MALFORMED)
    return refused(Refusal(kind, f"This request cannot be answered: {words}."))
