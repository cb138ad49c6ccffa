"""The OpenAPI document of the HTTP API, made from the models that the server uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getdoc
from typing import Any

from pydantic import BaseModel, TypeAdapter

from keyturn.gateway.api.operations import ASKED_AGAIN, WRITES
from keyturn.gateway.api.reading_routes import (
    EVENT_STREAM,
    LAST_EVENT_ID,
    EventsQuery,
    QueueQuery,
    ReadinessView,
)
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
from keyturn.gateway.protocol.http_problems import KINDS, PROBLEM_TYPE, Problem
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.run_context import HEADER
from keyturn.gateway.service.agents import AgentService, RemoteRunService

Json = dict[str, Any]

_JSON = "application/json"
_REF = "#/components/schemas/{model}"
_ABOUT = """\
Agents in other processes propose calls, wait until people have decided in Slack, and
run approved calls. An API key covers only its agents; no key can approve anything.

Every refusal is a problem (RFC 9457) whose `type` is for programs. Problems marked *ask
again* may pass; with 429 and 503, `Retry-After` contains the pause. All others are
final: clients do not repeat the request.
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
        scope: required scope of the API key; None if ``security`` sets another rule.
        body: body of the request.
        security: replaces the API key.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: TypeAdapter[Any]
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
        found["responses"] = {
            "200": {"description": "The answer.", "content": answer},
            "default": {"$ref": "#/components/responses/Problem"},
        }
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
            "responses": {"Problem": _problem()},
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
    if one.name in WRITES:
        words = "A repeated request gets the first one's answer for 24 hours"
        if one.name in ASKED_AGAIN:
            words = (
                "A repeated request is evaluated again, because its answer may allow a "
                "call to run"
            )
        headers.append(_header(HEADER, f"{words}; with another body it is refused."))
    places = (Gateway, RemoteRunService, AgentService)
    method = next(getattr(it, one.name) for it in places if hasattr(it, one.name))
    summary, _, _ = (getdoc(method) or "").partition("\n")
    return _Route(
        "post", one.path, one.name, summary, one.answer, one.scope,
        parameters=headers, body=one.question,
    )  # fmt: skip


def _readings() -> list[_Route]:
    read = Scope.READ
    last_id = _header(LAST_EVENT_ID, "The same as `after`, as browsers send it.")
    return [
        _Route(
            "get", f"{BASE}/approvals", "list_approvals",
            "Return open approvals of your agents, the soonest due first, by pages.",
            TypeAdapter(ApprovalPage), read, parameters=_query(QueueQuery),
        ),
        _Route(
            "get", f"{BASE}/approvals/{{id}}", "get_approval",
            "Return one approval with the state of its calls.",
            TypeAdapter(ApprovalView), read, parameters=[_ID],
        ),
        _Route(
            "post", f"{BASE}/approvals/{{id}}/decide", "decide",
            "Decide on a call as a person, with a personal token, not an API key.",
            TypeAdapter(DecideReply), read, _DECIDED,
            [_ID], TypeAdapter(DecideQuestion), security=[{"person": []}],
        ),
        _Route(
            "get", f"{BASE}/events", "events",
            "Return events of your calls since a cursor, or follow them.",
            TypeAdapter(EventPage), read, parameters=[*_query(EventsQuery), last_id],
        ),
        _Route(
            "get", f"{BASE}/openapi.json", "openapi", "Return this document.",
            TypeAdapter(Json), security=[],
        ),
        _Route(
            "get", "/healthz", "healthz", "The process answers.",
            TypeAdapter(str), security=[],
        ),
        _Route(
            "get", "/readyz", "readyz", "Return whether the gateway works.",
            TypeAdapter(ReadinessView), security=[],
        ),
    ]  # fmt: skip


def _query(model: type[BaseModel]) -> list[Json]:
    found = model.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": found[name]} for name in found]


def _header(name: str, description: str) -> Json:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _problem() -> Json:
    """Return the answer to a refused request, with all kinds of problems."""
    rows = [
        f"- {kind.status} `{kind.name}`: {kind.title}"
        + " *(ask again)*" * kind.can_pass
        for kind in KINDS.values()
    ]
    form = {
        "allOf": [
            {"$ref": _REF.format(model="Problem")},
            {"properties": {"type": {"enum": [*KINDS]}}},
        ]
    }
    about = "\n".join(["The request was refused.", "", *rows])
    return {"description": about, "content": {PROBLEM_TYPE: {"schema": form}}}
