"""The API's limits: floods, slow clients, a stop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import ValidationError

from keyturn.gateway.api.operations import (
    ASK,
    BY_PATH,
    WRITES,
    document,
    read,
    stored_bytes,
)
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.api.server import serving_api
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.client import outgoing
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import KeyRefused, SettingsError, StoreUnavailable
from keyturn.gateway.guarded_server import Limits
from keyturn.gateway.protocol import http_api, http_problems
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.http_problems import MALFORMED, TOO_MANY, ProblemKind
from keyturn.gateway.protocol.wire import Claimed, ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service_settings import ApiSettings
from keyturn.gateway.store.connection import usable
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, always_ready, serving
from tests.panics import apanic
from tests.service.harness import ANA, RULES, ServiceHarness
from tests.store_secrets import ENV, SECRETS
from tests.webhooks.receiver import make_certificate

REF = TurnRef(agent="support", thread="t1", message_id="m1")
CALL = ProposedCall(tool="process_refund", args={"amount": 1}, tool_call_id="c1")
SUBMIT = http_api.SUBMIT.question.dump_json(Turn(ref=REF, calls=(CALL,)))
NOTE = b'{"agent":"support"}'


async def test_a_flood_of_one_key_is_refused_and_no_other(
    stack: ApiStack, client: httpx.AsyncClient
) -> None:
    stack.api.limits = RateLimits(60, clock_s=lambda: 0.0)
    replies = [await client.post("/v1/note", content=NOTE) for _ in range(25)]
    other = {"Authorization": f"Bearer {stack.key()}"}
    reply = await client.post("/v1/note", content=NOTE, headers=other)

    assert [one.status_code for one in replies] == [200] * 20 + [429] * 5
    assert replies[-1].json()["type"].endswith(":too-many-requests")
    assert int(replies[-1].headers["Retry-After"]) >= 1
    assert reply.status_code == 200


def test_what_counts_more_has_to_come_back_first() -> None:
    now = [0.0]
    limits = RateLimits(60, clock_s=lambda: now[0])
    limits.take("a")
    limits.count_more("a", 29)

    now[0] = 10.0
    with pytest.raises(Refusal) as caught:
        limits.take("a")
    now[0] = 11.0
    limits.take("a")

    assert caught.value.headers["Retry-After"] == "1"


async def chunks() -> AsyncGenerator[bytes]:
    """Yield a body whose length is not known before it is read."""
    yield NOTE


MANY = http_api.SUBMIT.question.dump_json(Turn(ref=REF, calls=(CALL,) * 200))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/note", NOTE.ljust(20 * 64 * 1024)),
        ("/v1/submit", MANY),
        ("/v1/note", chunks),
    ],
)
async def test_a_large_request_counts_as_several(
    stack: ApiStack, client: httpx.AsyncClient, path: str, content: Any
) -> None:
    stack.api.limits = RateLimits(1)

    body: Any = content() if callable(content) else content
    large = await client.post(path, content=body)
    another = await client.post("/v1/note", content=NOTE)

    assert (large.status_code, another.status_code) == (200, 429)


async def test_so_many_requests_of_a_key_wait(
    stack: ApiStack, client: httpx.AsyncClient
) -> None:
    stack.api.limits = RateLimits(6000, most_waits=4)
    tasks = [
        asyncio.create_task(client.get("/v1/events", params={"wait": 30}))
        for _ in range(2)
    ]
    await asyncio.wait(tasks, timeout=0.3)
    refused = await client.get("/v1/events", params={"wait": 30})
    stack.api.tenant.events.end_waits()
    answered = await asyncio.gather(*tasks)

    assert refused.status_code == 429
    assert [one.status_code for one in answered] == [200, 200]


async def test_slow_clients_are_cut_off_and_keep_nobody_out(store: Store) -> None:
    limits = Limits(connections=20, header_s=0.3, body_s=0.3, body_bytes=1000)
    async with serving(ServiceHarness(store), limits=limits) as stack:
        host, _, port = stack.url.removeprefix("http://").partition(":")
        key = f"Authorization: Bearer {stack.key()}\r\n".encode()
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        for number, (_, writer) in enumerate(slow):
            start = b"POST /v1/note HTTP/1.1\r\nHost: x\r\n" + key
            body = b"Content-Length: 100\r\n\r\n{"
            writer.write(start + (body if number % 2 else b""))
        async with httpx.AsyncClient(base_url=stack.url) as client:
            health = await client.get("/healthz")
        async with asyncio.timeout(30):
            ends = await asyncio.gather(
                *(reader.read(-1) for reader, _ in slow), return_exceptions=True
            )
        for _, writer in slow:
            writer.close()

    assert health.status_code == 200
    answered = [one for one in ends if isinstance(one, bytes) and one]
    assert all(b" 408 " in one and b"problem+json" in one for one in answered)


async def test_a_stop_takes_no_work(stack: ApiStack, client: httpx.AsyncClient) -> None:
    stack.api.is_stopping = True
    reply = await client.post("/v1/submit", content=SUBMIT)
    ready = await client.get("/readyz")
    health = await client.get("/healthz")

    assert reply.status_code == 503
    assert reply.json()["type"].endswith(":stopping")
    assert reply.headers["Retry-After"] == "1"
    assert ready.status_code == 503
    assert health.status_code == 200


def test_waits_of_many_keys_leave_room_for_those_of_others() -> None:
    limits = RateLimits(6000, most_waits=12)
    with ExitStack() as waits:

        def wait(key: str) -> ProblemKind | None:
            try:
                waits.enter_context(limits.waiting(key))
            except Refusal as refusal:
                return refusal.kind if "Retry-After" in refusal.headers else None
            return None

        taken = {
            key: [wait(key) for _ in range(20)].count(None) for key in "abcdefghijkl"
        }

        # Each flood leaves room for the next client.
        assert taken["a"] == 6
        assert [taken[key] for key in "bcd"] == [3, 2, 1]
        assert sum(taken.values()) == 12
        assert (wait("a"), wait("z")) == (TOO_MANY, TOO_MANY)

    # They have ended.
    with limits.waiting("z"):
        pass


MB = 1_000_000


@pytest.mark.parametrize("size", [1, 40_000, 400_000])
@pytest.mark.parametrize(("ends_work", "most"), [(False, 2 * MB), (True, 3 * MB)])
def test_a_days_storage_is_bounded(size: int, most: int, *, ends_work: bool) -> None:
    now = [0.0]
    limits = RateLimits(60, megabytes_per_day=2, clock_s=lambda: now[0])
    stored, refusals = 0, list[Refusal]()
    for minute in range(24 * 60):
        now[0] = minute * 60.0
        for _ in range(100):
            try:
                limits.store("a", size, ends_work=ends_work)
            except Refusal as refusal:
                refusals.append(refusal)
                break
            stored += size

    assert stored <= most + size
    assert stored >= min(most, 24 * 60 * 100 * size) - 2 * size
    assert all("2 MB in a day" in one.detail for one in refusals)
    assert all(int(one.headers["Retry-After"]) >= 1 for one in refusals)
    limits.store("b", size)


def test_every_operation_that_writes_counts() -> None:
    counted = {one.name for one in OPERATIONS if stored_bytes(one, 0, b"{}")}
    writes = {one.name for one in OPERATIONS if one.scope is not Scope.READ}
    assert writes - counted == {"heartbeat", "attend", "settle", "thread_lease"}


def turn_of_size(number: int, size: int) -> Turn:
    call = ProposedCall(tool="process_refund", args={"x": "x" * size}, tool_call_id="c")
    ref = TurnRef(agent="support", thread=f"t{number}", message_id="m")
    return Turn(ref=ref, calls=(call,))


async def test_a_key_that_stored_enough_reads_and_reports(stack: ApiStack) -> None:
    stack.api.limits = RateLimits(10**9, megabytes_per_day=1, clock_s=lambda: 0.0)
    click, claim = await stack.harness.refund()
    await stack.harness.reviews.decide(click, Approve(), ANA)
    key = stack.key()
    async with stack.gateway(key) as gateway:
        claimed = await gateway.claim(claim)
    assert isinstance(claimed, Claimed)
    async with stack.client(key) as client:
        replies = [
            await client.post(
                "/v1/submit", content=turn_of_size(number, 60_000).model_dump_json()
            )
            for number in range(12)
        ]
        queue = await client.get("/v1/approvals")
        finish = {
            "item_id": claim.item_id,
            "fence": claimed.fence,
            "result": {"ok": True},
        }
        done = await client.post("/v1/finish", json=finish)
    async with stack.gateway() as other:
        await other.submit(turn_of_size(99, 60_000))

    codes = [one.status_code for one in replies]
    assert codes == [200] * codes.count(200) + [429] * codes.count(429)
    assert 0 < codes.count(429) < 12
    assert (queue.status_code, done.status_code, done.json()) == (200, 200, True)


# `keyturn gateway` serves the HTTP API where the settings have it.


LOOK_UP = ProposedCall(tool="process_refund", args={"amount": 899}, tool_call_id="c1")


CERTIFICATE = {"certificate": "hooks.crt", "private_key": "hooks.key"}
NO_KEY = "tk_" + "0" * 16 + "_" + "0" * 64


async def test_no_job_is_queued_for_an_agent_that_runs_elsewhere(store: Store) -> None:
    harness = ServiceHarness(store)
    turn = Turn(ref=REF, calls=(LOOK_UP,))
    async with serving(harness) as stack:
        (verdict,) = await _submitted(stack, turn)
        await harness.decide(verdict, Approve())
    here = turn.with_(ref=REF.with_(thread="t2"))
    (other,) = await harness.agents.submit(here)
    before = await harness.jobs()
    await harness.decide(other, Approve())

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


async def test_a_gateway_reports_a_store_that_hangs_in_time_for_a_probe(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Keyturn(
        policy=RULES, url=store.conn.url, secrets=SECRETS, data_dir=tmp_path
    ) as house:
        now_ms, answers = house.store.conn.now_ms, asyncio.Event()

        async def hanging(key: str) -> int:
            await answers.wait()
            return await now_ms(key)

        monkeypatch.setattr(usable, "ANSWERED_WITHIN_S", 0.2)
        monkeypatch.setattr(house.store.conn, "now_ms", hanging)
        async with asyncio.timeout(30):
            problems = await house.registration.ready()
        answers.set()  # other tasks ask, too

    assert problems == ["The store does not answer."]


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


NOTE_OF_AGENT = BY_PATH["/v1/note"]


def refused(members: int) -> Refusal:
    """Return how a body is refused that has so many unknown members."""
    body = "{" + ",".join(f'"k{n}":"secret"' for n in range(members)) + "}"
    with pytest.raises(Refusal) as caught:
        read(NOTE_OF_AGENT.question, body.encode())
    assert caught.value.kind is MALFORMED
    assert "secret" not in str(caught.value)
    return caught.value


def test_the_first_place_is_named() -> None:
    assert "The body does not fit at " in str(refused(10))
    assert "places" not in str(refused(10))
