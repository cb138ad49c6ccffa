"""`keyturn gateway` serves the HTTP API where the settings have it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import ValidationError

from keyturn.gateway.api.openapi import document
from keyturn.gateway.api.operations import BY_PATH, SPREAD, WRITES, read
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.api.serving import serving_api
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.client import outgoing
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import KeyRefused, SettingsError, StoreUnavailable
from keyturn.gateway.protocol import http_problems
from keyturn.gateway.protocol.http_api import OPERATIONS
from keyturn.gateway.protocol.http_problems import MALFORMED, ProblemKind
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service_settings import ApiSettings
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, always_ready, serving
from tests.panics import apanic
from tests.service.harness import ANA, RULES, ServiceHarness
from tests.store_secrets import ENV, SECRETS
from tests.webhooks.receiver import make_certificate

REF = TurnRef(agent="support", thread="t1", message_id="m1")
CALL = ProposedCall(tool="process_refund", args={"amount": 899}, tool_call_id="c1")


CERTIFICATE = {"certificate": "hooks.crt", "private_key": "hooks.key"}
NO_KEY = "tk_" + "0" * 16 + "_" + "0" * 64


async def test_no_job_is_queued_for_an_agent_that_runs_elsewhere(store: Store) -> None:
    harness = ServiceHarness(store)
    turn = Turn(ref=REF, calls=(CALL,))
    async with serving(harness) as stack:
        (verdict,) = await _submitted(stack, turn)
        await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    here = turn.with_(ref=REF.with_(thread="t2"))
    (other,) = await harness.agents.submit(here)
    before = await harness.jobs()
    await harness.reviews.decide(await harness.click(other), Approve(), ANA)

    assert before == 0
    assert await harness.jobs() == 1


async def _submitted(stack: ApiStack, turn: Turn) -> tuple[Verdict, ...]:
    async with stack.gateway() as gateway:
        return await gateway.submit(turn)


def settings(folder: Path, **api: object) -> Settings:
    config = folder / "keyturn.yml"
    config.write_text(json.dumps({"policy": {"version": 1}, "api": api}))
    return Settings.load(config, ENV)


@asynccontextmanager
async def served(store: Store, folder: Path, **api: object) -> AsyncGenerator[str]:
    harness = ServiceHarness(store)
    found = settings(folder, **{"listen": "127.0.0.1:0", **api})
    given = found, store, harness.agents, harness.reviews, always_ready
    async with serving_api(*given) as url:
        yield url


async def test_a_wrong_key_is_noticed_once(store: Store, tmp_path: Path) -> None:
    wrong = {"Authorization": f"Bearer {NO_KEY}"}
    async with (
        served(store, tmp_path) as url,
        httpx.AsyncClient(headers=wrong) as client,
    ):
        reply = await client.get(f"{url}/v1/events")

    assert reply.status_code == 401
    [event] = [one async for one in security_events(store, "default")]
    assert (event.reason, event.data["name"]) == ("key_refused", "0" * 16)
    assert store.security.counts == {SecurityKind.KEY_REFUSED: 1}


async def test_an_unfit_process_is_not_ready(store: Store, tmp_path: Path) -> None:
    found = settings(tmp_path, listen="127.0.0.1:0")
    async with (
        Keyturn(
            policy=RULES, url=store.conn.url, secrets=SECRETS, data_dir=tmp_path
        ) as house,
        serving_api(
            found, house.store, house.service, house.reviews, house.registration.ready
        ) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        before = await client.get("/readyz")
        house.registration.problem = "Another gateway keeps its threads elsewhere."
        after = await client.get("/readyz")

    assert (before.status_code, after.status_code) == (200, 503)
    assert after.json()["problems"] == [house.registration.problem]


async def test_a_taken_port_is_a_sentence(store: Store, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match=r"already in use.* 'api\.listen'"):
            async with served(store, tmp_path, listen=listen):
                pass


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_an_agent_asks_only_who_has_a_certificate_that_it_trusts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_trusted: bool
) -> None:
    make_certificate(tmp_path)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "hooks.crt"))
    outgoing.trusted.cache_clear()
    async with served(store, tmp_path, **CERTIFICATE) as url:
        gateway = HttpGateway(url.replace("127.0.0.1", "localhost"), NO_KEY)
        why: type[Exception] = KeyRefused if is_trusted else StoreUnavailable
        with pytest.raises(why):
            await gateway.note("support")
        await gateway.aclose()
    outgoing.trusted.cache_clear()


@pytest.mark.parametrize("broken", ["hooks.crt", "hooks.key"])
async def test_a_certificate_that_cannot_be_used_is_a_sentence(
    store: Store, tmp_path: Path, broken: str
) -> None:
    make_certificate(tmp_path)
    (tmp_path / broken).write_text("x")
    with pytest.raises(SettingsError, match=r"api\.certificate"):
        async with served(store, tmp_path, **CERTIFICATE):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "127.0.0.1:8780"},
        {"listen": "localhost:0"},
        {"listen": "0.0.0.0:8780", "behind_proxy": True},
    ],
)
def test_a_safe_address_is_taken(given: dict[str, object]) -> None:
    assert ApiSettings.model_validate(given).listen


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listen": "8780"}, "write host:port"),
        ({"listen": "::1:8780"}, "write host:port"),
        ({"listen": "0.0.0.0:8780"}, "in the clear"),
        ({"listen": "127.0.0.1:1", "certificate": "a.crt"}, "needs both"),
    ],
)
def test_an_address_that_shows_keys_fails(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        ApiSettings.model_validate(given)


async def test_a_stop_answers_those_who_wait(store: Store, tmp_path: Path) -> None:
    keys = ApiKeyStore(store, tenant="default")
    new = await keys.create("test", timedelta(hours=1), name="a", agents=["support"])
    headers = {"Authorization": f"Bearer {new.text}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        async with served(store, tmp_path) as url:
            waiting = asyncio.create_task(client.get(f"{url}/v1/events?wait=60"))
            await asyncio.wait([waiting], timeout=0.3)
        answered = await waiting

    assert (answered.status_code, answered.json()["events"]) == (200, [])


@pytest.mark.parametrize("place", ["_health", "_admit"])
async def test_a_request_that_panics_is_answered(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(stack.api, place, apanic)
    async with httpx.AsyncClient(base_url=stack.url) as client:
        reply = await client.get("/healthz")

    assert reply.status_code == 500
    assert reply.json()["detail"] == "The gateway failed; see its log."


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

    assert names > WRITES
    assert names > SPREAD
    for operation in OPERATIONS:
        runs = getattr(RemoteRunService, operation.name, None)
        method = runs or getattr(AgentService, operation.name)
        if operation.name in SPREAD:
            given = operation.question_type.model_fields
            assert {*given} <= {*signature(method).parameters}
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
