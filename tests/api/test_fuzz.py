"""Whatever is sent, the gateway answers, and never with a mistake of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from importlib import import_module
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS
from twokey.gateway.api.openapi import document
from twokey.gateway.api.rate_limits import RateLimits
from twokey.gateway.store.store import Store

# Its types are partly unknown.
schemathesis: Any = import_module("schemathesis")
checks: Any = import_module("schemathesis.specs.openapi.checks")
not_a_server_error: Any = import_module("schemathesis.checks").not_a_server_error

EVERY: Any = list(HealthCheck)
DOCUMENT: dict[str, Any] = json.loads(document())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def apart(valkey_url: str) -> Generator[ApiStack]:
    """Serve in a thread of its own: what asks here is synchronous."""
    ready, ended = threading.Event(), threading.Event()
    found: list[ApiStack] = []

    async def serve() -> None:
        store = Store(valkey_url, secrets=SECRETS, lease_ms=2000)
        await store.conn.command("FLUSHALL")
        async with serving(ServiceHarness(store)) as stack:
            stack.api.limits = RateLimits(10**9)
            found.append(stack)
            ready.set()
            await asyncio.to_thread(ended.wait)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    ended.set()
    thread.join()


@pytest.mark.slow
@SCHEMA.parametrize()  # type: ignore[untyped-decorator] # its module is Any, above
@settings(
    max_examples=25,
    deadline=None,
    derandomize=False,
    suppress_health_check=EVERY,
    phases=[Phase.explicit, Phase.generate],
)
def test_what_the_document_says_holds(apart: ApiStack, case: Any) -> None:
    # Nobody has to wait here for people.
    _drop(case.body, "wait_s")
    _drop(case.query, "wait")
    _drop(case.headers, "Accept")
    headers = {"Authorization": f"Bearer {apart.key(agents=['*'])}"}
    response = case.call(base_url=apart.url, headers=headers, timeout=30)

    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
        ],
    )


def _drop(part: Any, name: str) -> None:
    if hasattr(part, "pop") and not isinstance(part, list):
        part.pop(name, None)


PATHS = [*DOCUMENT["paths"], "/", "/v1/../healthz", "/%00", "/v1/approvals/ap_s0_0"]
RAW = st.binary(max_size=400)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=EVERY)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "x", "G\x00T"]),
    path=st.sampled_from(PATHS),
    headers=st.lists(
        st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=4
    ),
    length=st.sampled_from(["", "0", "-1", "5", "99999999999", "1, 2", "0x10"]),
    body=RAW,
    has_key=st.booleans(),
)
def test_raw_requests_are_answered_or_cut_off(
    apart: ApiStack,
    method: str,
    path: str,
    headers: list[tuple[bytes, bytes]],
    length: str,
    body: bytes,
    has_key: bool,  # noqa: FBT001 - drawn by name
) -> None:
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: x", b"Connection: close"]
    lines += [name + b": " + value for name, value in headers]
    if length:
        lines.append(f"Content-Length: {length}".encode())
    if has_key:
        lines.append(f"Authorization: Bearer {apart.key()}".encode())
    sent = b"\r\n".join([*lines, b"", body])

    answer = asyncio.run(_exchange(apart.url, sent))

    assert not answer.startswith((b"HTTP/1.1 5", b"HTTP/1.0 5")), sent


async def _exchange(url: str, sent: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(15):
            return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=EVERY)
@given(path=st.sampled_from([one for one in PATHS if "{" not in one]), body=JSON)
def test_any_json_is_answered(apart: ApiStack, path: str, body: object) -> None:
    headers = {"Authorization": f"Bearer {apart.key(agents=['*'])}"}
    sent = json.dumps(body).encode("utf-8", "surrogatepass")
    reply = httpx.post(f"{apart.url}{path}", content=sent, headers=headers, timeout=30)

    assert reply.status_code < 500
    assert reply.status_code == 200 or reply.json()["status"] == reply.status_code
