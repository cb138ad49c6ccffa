"""The OpenAPI document of the HTTP API, made from the models that the server uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from keyturn.gateway.api.operations import ASKED_AGAIN, REPLAYED
from keyturn.gateway.api.reading_routes import (
    EVENT_STREAM,
    LAST_EVENT_ID,
    EventsQuery,
    QueueQuery,
    ReadinessView,
)
from keyturn.gateway.protocol import http_problems as problems
from keyturn.gateway.protocol.approval_views import (
    ApprovalPage,
    ApprovalView,
    EventPage,
    EventView,
)
from keyturn.gateway.protocol.http_api import (
    BASE,
    LEASE_HEADER,
    OPERATIONS,
    DecideQuestion,
    DecideReply,
    Operation,
    Scope,
)
from keyturn.gateway.protocol.http_problems import PROBLEM_TYPE, Problem, ProblemKind
from keyturn.gateway.protocol.run_context import HEADER

Json = dict[str, Any]

_JSON = "application/json"
_REF = "#/components/schemas/{model}"
_ABOUT = """\
Agents in other processes propose calls, wait until people have decided in Slack, and
run approved calls. An API key covers only its agents; no key can approve anything.

Every refusal is a problem (RFC 9457) whose `type` is for programs. The last part of the
type is listed with each status below. Refusals marked *ask again* may pass; with 429
and 503, `Retry-After` contains the pause. All other refusals are final: clients do not
repeat the request.
"""
_DECIDED = (
    "`expected_version` and `action_hash`, as they were read, identify the decided "
    "call. The decision is processed like a click in Slack, with the same roles and "
    "quorum, under the current policy."
)
_STREAMED = (
    "`event` is the name and `data` an EventView without `id`. `event: missed` means "
    "that some events were dropped."
)

_EVERYWHERE = (
    *(problems.FAILED, problems.UNAVAILABLE, problems.STOPPING),
    *(problems.NOT_CONFIRMED, problems.UNANSWERED),
    *(problems.BOT_KEY_UNKNOWN, problems.CORRUPT_RECORD),
)
_OF_KEYS = (problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.TOO_MANY)
_OF_BODIES = (
    *(problems.MALFORMED, problems.NOT_FOUND, problems.TOO_SLOW),
    *(problems.REFUSED, problems.LEASE_LOST, problems.TOO_LARGE),
    *(problems.ILLEGAL_TRANSITION, problems.TOO_MANY_SPEAKERS, problems.REF_REUSED),
)
_OF_WRITES = (problems.UNDER_WAY, problems.KEY_REUSED)
_OF_READINGS = (*_EVERYWHERE, *_OF_KEYS, problems.MALFORMED)
_OF_DECISIONS = (
    *(*_EVERYWHERE, problems.TOO_MANY, problems.MALFORMED, problems.NO_TOKEN),
    *(problems.PEOPLE_DECIDE, problems.NOT_ALLOWED, problems.NOT_FOUND),
    *(problems.STALE, problems.SETTLED, problems.EXPIRED, problems.REFUSED),
    *(problems.INVALID, problems.TOO_SLOW, problems.TOO_LARGE),
    problems.ILLEGAL_TRANSITION,
)
_SUMMARIES = {
    "thread_lease": "Take, keep or give back the right to run a thread.",
    "settle": "Report the open questions of a paused thread; end its other calls.",
    "submit": "Evaluate the calls of a turn, and ask people about those that wait.",
    "claim": "Ask for the right to run an approved call once.",
    "heartbeat": "Keep a claim; false when it is lost.",
    "finish": "Record the result of an execution; false when the claim is lost.",
    "release": "Give a claim back unused.",
    "report_progress": "Ask to run a call that needs no approval, or report on one.",
    "ended": "Report the end of a call that needed no approval.",
    "outcomes": "Return the outcomes of the calls of a message.",
    "supersede": "Supersede waiting calls of a turn: its thread moved on.",
    "history": "Return the edits of calls of a run that ran.",
    "edits_known": "Return the edits that people really made.",
    "late_reports": "Return reports of executors that came after a reconciliation.",
    "note": "Return the tools of an agent that need a person.",
    "remember": "Set the requester of a run, who cannot approve its calls.",
    "pending": "Return the calls of a run that wait for people.",
    "answers": "Return the answers to a thread's open questions; waits for one.",
    "withdraw": "Withdraw waiting calls; return the ids of the withdrawn ones.",
    "supersede_run": "Supersede all waiting calls of a run: its thread is deleted.",
}
"""Summary of each operation."""
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_]{1,80}$"},
}


@dataclass(frozen=True)
class _Route:
    """One operation of the API.

    Attributes:
        answer: body of the answer with status 200.
        kinds: kinds of problems in its other answers.
        scope: required scope of the API key; None if ``security`` sets another rule.
        body: body of the request.
        security: replaces the API key.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: TypeAdapter[Any]
    kinds: Sequence[ProblemKind]
    scope: Scope | None = None
    about: str = ""
    parameters: Sequence[Json] = ()
    body: TypeAdapter[Any] | None = None
    security: Sequence[Json] | None = None

    def described(self, schemas: Mapping[tuple[str, Any], Json]) -> Json:
        """Return the operation, given the schemas of all bodies."""
        found: Json = {"operationId": self.name, "summary": self.summary}
        if self.scope is not None:
            about = self.about or f"Needs the scope `{self.scope.value}`."
            tag = "people" if self.security else self.scope.value
            found |= {"tags": [tag], "description": about}
        if self.security is not None:
            found["security"] = self.security
        if self.parameters:
            found["parameters"] = [*self.parameters]
        if self.body is not None:
            content = {_JSON: {"schema": schemas[self.name, "validation"]}}
            found["requestBody"] = {"required": True, "content": content}
        answer = {_JSON: {"schema": schemas[self.name, "serialization"]}}
        found["responses"] = _answers_of(self.kinds)
        found["responses"]["200"] = {"description": "The answer.", "content": answer}
        return found


@cache
def document() -> bytes:
    """Return the document (OpenAPI 3.1), as JSON."""
    return json.dumps(_document(), sort_keys=True).encode()


def _document() -> Json:
    routes = [*map(_of_operation, OPERATIONS), *_readings()]
    inputs: list[tuple[str, Any, TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(Problem)),
        ("event", "serialization", TypeAdapter(EventView)),
    ]
    for one in routes:
        inputs.append((one.name, "serialization", one.answer))
        if one.body is not None:
            inputs.append((one.name, "validation", one.body))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    paths: Json = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method] = one.described(schemas)
    stream = {"schema": {"type": "string", "description": _STREAMED}}
    events = paths[f"{BASE}/events"]["get"]["responses"]
    events["200"]["content"][EVENT_STREAM] = stream
    ready = paths["/readyz"]["get"]["responses"]
    ready["503"] = {**ready["200"], "description": "`problems` lists the problems."}
    health = paths["/healthz"]["get"]["responses"]["200"]
    health["content"] = {"text/plain": health["content"][_JSON]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyturn",
            "version": "1",
            "summary": "Approvals by people for the tool calls of AI agents.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"api_key": []}],
        "paths": paths,
        "components": {
            "schemas": shared["$defs"],
            "securitySchemes": {
                "api_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "tk_…, printed by `keyturn api-keys create`.",
                },
                "person": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "From the OpenID Connect issuer in `api.people`.",
                },
            },
        },
    }


def _of_operation(one: Operation[Any, Any]) -> _Route:
    headers = [_header(LEASE_HEADER, "The lease on a thread; see `thread_lease`.")]
    writes: Sequence[ProblemKind] = ()
    if one.name in REPLAYED | ASKED_AGAIN:
        writes = _OF_WRITES
        words = "A repeated request gets the first one's answer for 24 hours"
        if one.name in ASKED_AGAIN:
            words = (
                "A repeated request is evaluated again, because its answer may allow a "
                "call to run"
            )
        headers.append(_header(HEADER, f"{words}; with another body it is refused."))
    kinds = [*_EVERYWHERE, *_OF_KEYS, *_OF_BODIES, *writes]
    return _Route(
        "post", one.path, one.name, _SUMMARIES[one.name], one.answer, kinds,
        one.scope, parameters=headers, body=one.question,
    )  # fmt: skip


def _readings() -> list[_Route]:
    read, failed = Scope.READ, [problems.FAILED]
    last_id = _header(LAST_EVENT_ID, "The same as `after`, as browsers send it.")
    return [
        _Route(
            "get", f"{BASE}/approvals", "list_approvals",
            "Return open approvals of your agents, the soonest due first, by pages.",
            TypeAdapter(ApprovalPage), _OF_READINGS, read,
            parameters=_query(QueueQuery),
        ),
        _Route(
            "get", f"{BASE}/approvals/{{id}}", "get_approval",
            "Return one approval with the state of its calls.",
            TypeAdapter(ApprovalView), [*_OF_READINGS, problems.NOT_FOUND], read,
            parameters=[_ID],
        ),
        _Route(
            "post", f"{BASE}/approvals/{{id}}/decide", "decide",
            "Decide on a call as a person, with a personal token, not an API key.",
            TypeAdapter(DecideReply), _OF_DECISIONS, read, _DECIDED,
            [_ID], TypeAdapter(DecideQuestion), security=[{"person": []}],
        ),
        _Route(
            "get", f"{BASE}/events", "events",
            "Return events of your calls since a cursor, or follow them.",
            TypeAdapter(EventPage), _OF_READINGS, read,
            parameters=[*_query(EventsQuery), last_id],
        ),
        _Route(
            "get", f"{BASE}/openapi.json", "openapi", "Return this document.",
            TypeAdapter(Json), failed, security=[],
        ),
        _Route(
            "get", "/healthz", "healthz", "The process answers.",
            TypeAdapter(str), failed, security=[],
        ),
        _Route(
            "get", "/readyz", "readyz", "Return whether the gateway works.",
            TypeAdapter(ReadinessView), failed, security=[],
        ),
    ]  # fmt: skip


def _query(model: type[BaseModel]) -> list[Json]:
    found = model.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": found[name]} for name in found]


def _header(name: str, description: str) -> Json:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _answers_of(kinds: Iterable[ProblemKind]) -> Json:
    """Return the answers with these problems, by status."""
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {
            "description": "; ".join(map(_described, ones)),
            "content": {PROBLEM_TYPE: {"schema": _problem(status, ones)}},
        }
        for status, ones in by_status.items()
    }


def _problem(status: int, kinds: Iterable[ProblemKind]) -> Json:
    of_kind = {
        "type": {"enum": [one.type for one in kinds]},
        "status": {"const": status},
    }
    return {"allOf": [{"$ref": _REF.format(model="Problem")}, {"properties": of_kind}]}


def _described(kind: ProblemKind) -> str:
    again = " *(ask again)*" if kind.can_pass else ""
    return f"`{kind.name}`: {kind.title}{again}"
