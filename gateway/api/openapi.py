"""The OpenAPI document of the HTTP API, made from what the server reads and writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from twokey.gateway.api.openapi_problems import (
    EVERYWHERE,
    OF_BODIES,
    OF_KEYS,
    OF_WRITES,
    answers_of,
)
from twokey.gateway.api.operations import ALL_OPERATIONS, ASKED_AGAIN, REPLAYED
from twokey.gateway.api.reading_routes import EVENT_STREAM, LAST_EVENT_ID, QUEUE_STATES
from twokey.gateway.protocol import http_problems as problems
from twokey.gateway.protocol.approval_views import (
    MOST_OF_A_PAGE,
    PAGE,
    ApprovalPage,
    ApprovalView,
    EventPage,
    EventView,
)
from twokey.gateway.protocol.decision_api import DecideQuestion, DecideReply
from twokey.gateway.protocol.http_api import (
    ANSWERS,
    BASE,
    LEASE_HEADER,
    Operation,
    Scope,
)
from twokey.gateway.protocol.http_problems import Problem, ProblemKind
from twokey.gateway.protocol.idempotency import HEADER
from twokey.gateway.protocol.remote_runs import LONGEST_WAIT_S
from twokey.gateway.protocol.thread_api import (
    TAKE_LEASE_HEADER,
    TAKEN_LEASE_HEADER,
    TakenLease,
)

Json = dict[str, Any]

_REF = "#/components/schemas/{model}"
_ABOUT = """\
Agents in other processes propose calls, wait until people have decided in Slack, and
run what they approved. An API key speaks for its agents alone; no key can approve
anything.

Every refusal is a problem (RFC 9457) whose `type` is for programs. Its last part is
named with each status below. What is marked *ask again* may be answered otherwise
later; 429 and 503 say with `Retry-After` when. Every other refusal stays the same:
clients do not repeat the request.
"""


@cache
def document() -> bytes:
    """Return the document (OpenAPI 3.1), as JSON."""
    return json.dumps(_document(), sort_keys=True).encode()


def _document() -> Json:
    models, adapters = _models()
    paths: Json = {}
    for operation in ALL_OPERATIONS:
        paths[operation.path] = {"post": _operation(operation, adapters)}
    paths |= _readings()
    schemas = {**models, "Problem": _schema_of(Problem)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Twokey",
            "version": "1",
            "summary": "Approvals by people for the tool calls of AI agents.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"api_key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "api_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "tk_…, as `twokey api-keys create` prints it.",
                },
                "person": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Of the OpenID Connect issuer in `api.people`.",
                },
            },
        },
    }


def _models() -> tuple[Json, Json]:
    """Return the schemas of all bodies, and where each operation's are."""
    inputs: list[tuple[str, Any, TypeAdapter[Any]]] = []
    for operation in ALL_OPERATIONS:
        inputs.append((f"{operation.name}:asks", "validation", operation.question))
        inputs.append((f"{operation.name}:gets", "serialization", operation.answer))
    found, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    schemas: Json = dict(shared.get("$defs", {}))
    views: list[tuple[type[BaseModel], Any]] = [
        (view, "serialization")
        for view in (ApprovalPage, ApprovalView, EventPage, EventView, DecideReply)
    ]
    views.append((DecideQuestion, "validation"))
    _, of_views = models_json_schema(views, ref_template=_REF)
    for name, schema in of_views.get("$defs", {}).items():
        schemas.setdefault(name, schema)
    return schemas, {name: schema for (name, _), schema in found.items()}


def _schema_of(model: type[BaseModel]) -> Json:
    return model.model_json_schema(
        ref_template=_REF, schema_generator=GenerateJsonSchema
    )


def _operation(operation: Operation[Any, Any], adapters: Json) -> Json:
    is_write = operation.name in REPLAYED | ASKED_AGAIN
    parameters = [_lease_header()]
    headers: Json = {}
    if operation is ANSWERS:
        parameters.append(_take_lease_header())
        headers[TAKEN_LEASE_HEADER] = _taken_header()
    if is_write:
        parameters.append(_idempotency_header(operation.name))
    kinds = [*EVERYWHERE, *OF_KEYS, *OF_BODIES, *(OF_WRITES if is_write else ())]
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs the scope `{operation.scope.value}`.",
        "tags": [operation.scope.value],
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": adapters[f"{operation.name}:asks"]}
            },
        },
        "responses": {
            "200": {
                "description": "The answer.",
                **({"headers": headers} if headers else {}),
                "content": {
                    "application/json": {"schema": adapters[f"{operation.name}:gets"]}
                },
            },
            **answers_of(kinds),
        },
    }


def _readings() -> Json:
    reading = [*EVERYWHERE, *OF_KEYS, problems.MALFORMED]
    return {
        f"{BASE}/approvals": {
            "get": _reading(
                "list_approvals",
                "Return what is open of your agents, the soonest due first, by pages.",
                "ApprovalPage",
                reading,
                parameters=[
                    _query("agent", "Only of this agent."),
                    _query("state", "Where a call of it stands.", enum=[*QUEUE_STATES]),
                    _query("cursor", "`next` of the page before."),
                    _query(
                        "limit",
                        "Approvals of a page.",
                        least=1,
                        most=MOST_OF_A_PAGE,
                        default=PAGE,
                    ),
                ],
            )
        },
        f"{BASE}/approvals/{{id}}": {
            "get": _reading(
                "get_approval",
                "Return one approval: what became of its calls.",
                "ApprovalView",
                [*reading, problems.NOT_FOUND],
                parameters=[_id()],
            )
        },
        f"{BASE}/approvals/{{id}}/decide": {"post": _decide()},
        f"{BASE}/events": {"get": _events(reading)},
        f"{BASE}/openapi.json": {
            "get": _open("openapi", "Return this document.", "application/json")
        },
        "/healthz": {"get": _open("healthz", "The process answers.", "text/plain")},
        "/readyz": {"get": _readiness()},
    }


def _decide() -> Json:
    found = _reading(
        "decide",
        "Decide about a call, as a person: by a token of your own, by no API key.",
        "DecideReply",
        [
            *(*EVERYWHERE, problems.TOO_MANY, problems.MALFORMED, problems.NO_TOKEN),
            *(problems.PEOPLE_DECIDE, problems.NOT_ALLOWED, problems.NOT_FOUND),
            *(problems.STALE, problems.SETTLED, problems.EXPIRED, problems.REFUSED),
            *(problems.INVALID, problems.TOO_SLOW, problems.TOO_LARGE),
            problems.ILLEGAL_TRANSITION,
        ],
        parameters=[_id()],
    )
    found["description"] = (
        "What is decided is named by `expected_version` and `action_hash`, as they "
        "were read. It goes the same way as a click in Slack: roles, several people, "
        "the policy of now."
    )
    found["tags"] = ["people"]
    found["security"] = [{"person": []}]
    found["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _REF.format(model="DecideQuestion")}
            }
        },
    }
    return found


def _id() -> Json:
    return {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_]{1,80}$"},
    }


def _events(reading: Iterable[ProblemKind]) -> Json:
    found = _reading(
        "events",
        "Return what happened to your calls since a place; or follow it as a stream.",
        "EventPage",
        reading,
        parameters=[
            _query("agent", "Only what concerns this agent."),
            _query("after", "`next` of the page before, or the id of an event."),
            _query(
                "wait",
                "For how many seconds to wait for the first event.",
                least=0,
                most=int(LONGEST_WAIT_S),
                default=0,
            ),
            _header(LAST_EVENT_ID, "The same as `after`, as browsers send it."),
        ],
    )
    found["responses"]["200"]["content"][EVENT_STREAM] = {
        "schema": {
            "type": "string",
            "description": "`event` is the name and `data` an EventView without `id`. "
            "`event: missed` says that some events are not kept any more.",
        }
    }
    return found


def _reading(
    name: str,
    summary: str,
    schema: str,
    kinds: Iterable[ProblemKind],
    *,
    parameters: list[Json],
) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "description": f"Needs the scope `{Scope.READ.value}`.",
        "tags": [Scope.READ.value],
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {
                    "application/json": {"schema": {"$ref": _REF.format(model=schema)}}
                },
            },
            **answers_of(kinds),
        },
    }


def _open(name: str, summary: str, media_type: str) -> Json:
    schema = {"type": "string" if media_type == "text/plain" else "object"}
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {media_type: {"schema": schema}},
            },
            **answers_of([problems.FAILED]),
        },
    }


def _readiness() -> Json:
    body = {
        "type": "object",
        "required": ["ready"],
        "properties": {
            "ready": {"type": "boolean"},
            "problems": {"type": "array", "items": {"type": "string"}},
        },
    }
    found = _open("readyz", "Say whether the gateway works.", "application/json")
    content = {"application/json": {"schema": body}}
    found["responses"]["200"]["content"] = content
    found["responses"]["503"] = {
        "description": "It does not; `problems` says what is missing.",
        "content": content,
    }
    return found


def _query(
    name: str,
    description: str,
    *,
    enum: list[str] | None = None,
    least: int | None = None,
    most: int | None = None,
    default: int | None = None,
) -> Json:
    schema: Json = {"type": "string"}
    if enum is not None:
        schema |= {"enum": enum, "default": enum[0]}
    if most is not None:
        schema = {
            "type": "integer", "minimum": least, "maximum": most, "default": default,
        }  # fmt: skip
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _header(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "header",
        "description": description,
        "schema": {"type": "string"},
    }


def _lease_header() -> Json:
    return _header(
        LEASE_HEADER, "The lease on a thread under which is asked; see `thread_lease`."
    )


def _take_lease_header() -> Json:
    found = _header(
        TAKE_LEASE_HEADER,
        "A new token: with an answer, the lease on the thread is taken under it, if it "
        "is free and the key has the scope `execute`. See `thread_lease`, which may be "
        "asked with the same token where an answer got lost.",
    )
    found["schema"]["pattern"] = "^[0-9a-f]{32}$"
    return found


def _taken_header() -> Json:
    return {
        "description": "The lease that was taken; missing where none was.",
        "content": {"application/json": {"schema": _schema_of(TakenLease)}},
    }


def _idempotency_header(name: str) -> Json:
    words = "A repeated request gets the first one's answer for 24 hours"
    if name in ASKED_AGAIN:
        words = (
            "A repeated request is answered by what holds now, since a call may run by "
            "it"
        )
    return _header(HEADER, f"{words}; with another body it is refused.")
