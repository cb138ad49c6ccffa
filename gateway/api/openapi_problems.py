"""Which problems the OpenAPI document names for which requests, and how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twokey.gateway.protocol import http_problems as problems
from twokey.gateway.protocol.http_problems import PROBLEM_TYPE, ProblemKind

Json = dict[str, Any]

_REF = "#/components/schemas/Problem"

EVERYWHERE = (
    *(problems.FAILED, problems.UNAVAILABLE, problems.STOPPING),
    *(problems.NOT_CONFIRMED, problems.UNANSWERED),
    *(problems.NEWER_RECORD, problems.BOT_KEY_UNKNOWN, problems.CORRUPT_RECORD),
)
OF_KEYS = (problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.TOO_MANY)
OF_BODIES = (
    *(problems.MALFORMED, problems.NOT_FOUND, problems.TOO_SLOW),
    *(problems.REFUSED, problems.LEASE_LOST, problems.TOO_LARGE),
    *(problems.ILLEGAL_TRANSITION, problems.TOO_MANY_SPEAKERS),
)
OF_WRITES = (problems.UNDER_WAY, problems.KEY_REUSED)


def answers_of(kinds: Iterable[ProblemKind]) -> Json:
    """Return the answers with these problems, by status."""
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {
            "description": "; ".join(map(_described, ones)),
            "content": {
                PROBLEM_TYPE: {
                    "schema": {
                        "allOf": [
                            {"$ref": _REF},
                            {
                                "properties": {
                                    "type": {"enum": [one.type for one in ones]},
                                    "status": {"const": status},
                                }
                            },
                        ]
                    }
                }
            },
        }
        for status, ones in sorted(by_status.items())
    }


def _described(kind: ProblemKind) -> str:
    again = " *(ask again)*" if kind.can_pass else ""
    return f"`{kind.name}`: {kind.title}{again}"
