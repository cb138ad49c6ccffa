"""The OpenAPI document describes the server: valid, complete and true."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from keyturn.gateway.api.openapi import document
from keyturn.gateway.api.operations import ASK, BY_PATH, WRITES, read
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.protocol import http_problems
from keyturn.gateway.protocol.http_api import OPERATIONS
from keyturn.gateway.protocol.http_problems import MALFORMED, ProblemKind
from tests.api.api_stack import ApiStack

DOCUMENT: dict[str, Any] = json.loads(document())
KINDS = {
    kind.name: kind
    for kind in vars(http_problems).values()
    if isinstance(kind, ProblemKind)
}


def test_it_is_valid() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_every_operation_is_in_it_and_answered() -> None:
    names = {operation.name for operation in OPERATIONS}

    assert set(ASK) == names
    assert names > WRITES
    for operation in OPERATIONS:
        listed = DOCUMENT["paths"][operation.path]["post"]
        assert listed["operationId"] == operation.name
        assert listed["summary"]
        assert listed["requestBody"]["content"]["application/json"]["schema"]
        assert listed["responses"]["200"]["content"]["application/json"]["schema"]


def test_every_kind_of_problem_is_in_it() -> None:
    refused = DOCUMENT["components"]["responses"]["Problem"]
    [form] = [content["schema"] for content in refused["content"].values()]
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            named = operation["responses"]["default"]["$ref"]
            assert named == "#/components/responses/Problem"

    listed = form["allOf"][1]["properties"]["type"]["enum"]
    assert sorted(listed) == sorted(kind.type for kind in KINDS.values())
    for name, kind in KINDS.items():
        again = " *(ask again)*" if kind.can_pass else ""
        row = f"- {kind.status} `{name}`: {kind.title}{again}"
        assert row in refused["description"].splitlines()


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/approve", 404, "not-found"),
        ("GET", "/v1/approvals/..%2f..", 404, "not-found"),
        ("GET", "/v1/submit", 405, "wrong-method"),
        ("DELETE", "/v1/approvals/ap_1", 405, "wrong-method"),
    ],
)
async def test_what_is_not_there_is_a_problem(
    stack: ApiStack, method: str, path: str, status: int, kind: str
) -> None:
    async with httpx.AsyncClient(base_url=stack.url) as client:
        reply = await client.request(method, path)

    assert (reply.status_code, reply.json()["type"]) == (status, KINDS[kind].type)
    assert reply.headers["Content-Type"].startswith("application/problem+json")
    if status == 405:
        assert reply.headers["Allow"] in {"GET", "POST"}


NOTE = BY_PATH["/v1/note"]


def refused(members: int) -> Refusal:
    """Return how a body is refused that has so many unknown members."""
    body = "{" + ",".join(f'"k{n}":"secret"' for n in range(members)) + "}"
    with pytest.raises(Refusal) as caught:
        read(NOTE.question, body.encode())
    assert caught.value.kind is MALFORMED
    assert "secret" not in str(caught.value)
    return caught.value


def test_the_first_place_is_named() -> None:
    assert "The body does not fit at " in str(refused(10))
    assert "places" not in str(refused(10))
