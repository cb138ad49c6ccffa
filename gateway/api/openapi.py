"""The OpenAPI document of the HTTP API, made from the models that the server uses."""

from __future__ import annotations

import json
from functools import cache
from inspect import getdoc
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter

from keyturn.gateway.api.reading_routes import (
    EVENT_STREAM,
    LAST_EVENT_ID,
    EventsQuery,
    QueueQuery,
    ReadinessView,
)
from keyturn.gateway.protocol import BASE
from keyturn.gateway.protocol.approval_views import (
    ApprovalPage,
    ApprovalView,
    EventPage,
    EventView,
)
from keyturn.gateway.protocol.http_api import (
    LEASE_HEADER,
    OPERATIONS,
    DecideQuestion,
    DecideReply,
    Operation,
    Scope,
)
from keyturn.gateway.protocol.http_problems import KINDS, PROBLEM_TYPE, Problem
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService

Json = dict[str, Any]

_JSON = "application/json"
_REF = "#/components/schemas/{model}"
_ABOUT = "docs/http-api.md describes the API: keys, limits, and what to ask again."
_DECIDED = "The decision is processed like a click in Slack."
_STREAMED = "`event` is the name and `data` an EventView without `id`."
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_]{1,80}$"},
}


class _Route(NamedTuple):
    """One operation of the API: its description without bodies, and its bodies."""

    method: str
    path: str
    about: Json
    answer: TypeAdapter[Any]
    body: TypeAdapter[Any] | None = None


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
        inputs.append((one.about["operationId"], "serialization", one.answer))
        if one.body is not None:
            inputs.append((one.about["operationId"], "validation", one.body))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    paths: Json = {}
    for one in routes:
        name = one.about["operationId"]
        answer = {_JSON: {"schema": schemas[name, "serialization"]}}
        responses = {
            "200": {"description": "The answer.", "content": answer},
            "default": {"$ref": "#/components/responses/Problem"},
        }
        found = paths.setdefault(one.path, {})
        found[one.method] = {**one.about, "responses": responses}
        if one.body is not None:
            content = {_JSON: {"schema": schemas[name, "validation"]}}
            found[one.method]["requestBody"] = {"required": True, "content": content}
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
    places = (Gateway, RemoteRunService, AgentService)
    method = next(getattr(it, one.name) for it in places if hasattr(it, one.name))
    summary, _, _ = (getdoc(method) or "").partition("\n")
    about = _about(one.name, summary, one.scope, parameters=headers)
    return _Route("post", one.path, about, one.answer, one.question)


def _readings() -> list[_Route]:
    last_id = _header(LAST_EVENT_ID, "The same as `after`, as browsers send it.")
    listed = "Return open approvals of your agents, the soonest due first, by pages."
    one = "Return one approval with the state of its calls."
    decided = "Decide on a call as a person, with a personal token, not an API key."
    followed = "Return events of your calls since a cursor, or follow them."
    person: Json = {
        "tags": ["people"],
        "description": _DECIDED,
        "security": [{"person": []}],
    }
    read, approvals = Scope.READ, f"{BASE}/approvals"
    queue = _about("list_approvals", listed, read, parameters=_query(QueueQuery))
    approval = _about("get_approval", one, read, parameters=[_ID])
    decide = _about("decide", decided, read, parameters=[_ID], **person)
    parameters = [*_query(EventsQuery), last_id]
    events = _about("events", followed, read, parameters=parameters)
    document = _about("openapi", "Return this document.", None)
    health = _about("healthz", "The process answers.", None)
    ready = _about("readyz", "Return whether the gateway works.", None)
    to_decide, decision = TypeAdapter(DecideQuestion), TypeAdapter(DecideReply)
    return [
        _Route("get", approvals, queue, TypeAdapter(ApprovalPage)),
        _Route("get", f"{approvals}/{{id}}", approval, TypeAdapter(ApprovalView)),
        _Route("post", f"{approvals}/{{id}}/decide", decide, decision, to_decide),
        _Route("get", f"{BASE}/events", events, TypeAdapter(EventPage)),
        _Route("get", f"{BASE}/openapi.json", document, TypeAdapter(Json)),
        _Route("get", "/healthz", health, TypeAdapter(str)),
        _Route("get", "/readyz", ready, TypeAdapter(ReadinessView)),
    ]


def _about(name: str, summary: str, scope: Scope | None, **more: object) -> Json:
    """Return an operation without its bodies; without a scope it needs no key."""
    found: Json = {"operationId": name, "summary": summary}
    if scope is None:
        return found | {"security": []}
    about = f"Needs the scope `{scope.value}`."
    return found | {"tags": [scope.value], "description": about} | more


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
