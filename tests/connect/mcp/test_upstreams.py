"""A forwarded call that fails: certainly not sent, refused, or unknown."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from keyturn.connect.mcp import upstreams
from keyturn.connect.mcp.passing import KINDS
from keyturn.connect.mcp.upstreams import (
    NoAnswer,
    NotSent,
    ServerRefused,
    Upstream,
    UpstreamSpec,
)
from keyturn.gateway.protocol.edits import EDIT_MARK
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.connect.mcp.conftest import Connect, World, http_server, modern, until
from tests.connect.mcp.upstream import NOTE, TOOLS, Script, make_server
from tests.ports import free_port

ARGS: JsonObject = {"to": "ada", "amount": 5}


class Faulty:
    """A proxy before a server: it answers calls as a test asks for it.

    Attributes:
        fault: status and body of the answers to calls. ``cut``: the answer ends early.
            ``lost``: the call runs, and its answer cannot be resumed.
        calls: number of calls with such an answer.
        is_old: the server has the protocol with sessions.
        forgets_with: status for an unknown session.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.fault = ""
        self.calls = 0
        self.is_old = False
        self.forgets_with = 404

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, except a call while there is a fault."""
        is_open = not (self.fault or self.is_old)
        if scope["type"] == "http" and b"last-event-id" in dict(scope["headers"]):
            await _answer(send, 404)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or is_open:
            await self._app(scope, receive, send)
            return
        message = await receive()
        fault = self._fault_of(message["body"])

        async def again() -> Any:
            nonlocal message
            kept, message = message, None
            return kept or await receive()

        async def told(event: Any) -> None:
            if event.get("status") == 404:
                event["status"] = self.forgets_with
            await send(event)

        self.calls += b'"tools/call"' in message["body"] and bool(fault)
        status, _, body = fault.partition(" ")
        if not fault:
            await self._app(scope, again, told)
        elif status == "lost":
            await self._app(scope, again, _dropped)
            await _answer(send, 200, "id: 1\nretry: 1\ndata:\n\n", "text/event-stream")
        elif status == "cut":
            await _answer(send, 200, body, missing=10)
        else:
            await _answer(send, int(status), body)

    def _fault_of(self, body: bytes) -> str:
        if self.is_old and b'"server/discover"' in body:
            return "404 "
        return self.fault if b'"tools/call"' in body else ""


async def _dropped(_event: Any) -> None:
    return


async def _answer(
    send: Any,
    status: int,
    body: str = "",
    kind: str = "application/json",
    *,
    missing: int = 0,
) -> None:
    length = str(len(body) + missing).encode()
    headers = [(b"content-type", kind.encode()), (b"content-length", length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Give the script of a server."""
    return Script(tmp_path / "billing")


@asynccontextmanager
async def connected(
    script: Script, *, is_old: bool = False
) -> AsyncGenerator[tuple[Upstream, Faulty]]:
    """Connect to a server over HTTP, through a faulty proxy."""
    faulty = Faulty(make_server(script.folder).streamable_http_app())
    faulty.is_old = is_old
    async with http_server(faulty) as url:
        upstream = Upstream(UpstreamSpec("billing", url=f"{url}/mcp"))
        await upstream.listed("tools")
        yield upstream, faulty
        await upstream.aclose()


ERROR = '{"jsonrpc":"2.0","id":%d,"error":{"code":%d,"message":"no"}}'


@pytest.mark.parametrize(
    ("fault", "means"),
    [
        ("502 bad gateway", NoAnswer),
        ("500 ", NoAnswer),
        ("202 ", NoAnswer),
        ("302 ", NoAnswer),
        ("200 <html>", NoAnswer),
        ("cut {", NoAnswer),
        ("401 ", ServerRefused),
        ("422 ", ServerRefused),
        # Without a session, the server cannot have forgotten it.
        ("404 ", ServerRefused),
        ("session 404 ", NotSent),
    ],
)
async def test_an_answer_of_http_says_whether_the_call_may_have_run(
    script: Script, fault: str, means: type[Exception]
) -> None:
    has_session = fault.startswith("session ")
    async with connected(script, is_old=has_session) as (upstream, faulty):
        faulty.fault = fault.removeprefix("session ")
        with pytest.raises(means):
            await upstream.call("pay", ARGS, meta={})
        # Only a forgotten session is tried once more, with a new one.
        assert faulty.calls == (2 if means is NotSent else 1)
        # Another call is not affected.
        faulty.fault = ""
        assert not (await upstream.call("pay", ARGS, meta={})).is_error
    assert len(script.calls()) == 1


async def test_an_error_of_the_server_itself_is_a_refusal(script: Script) -> None:
    script.put(error="no such customer")
    async with connected(script) as (upstream, _):
        with pytest.raises(ServerRefused, match="no such customer"):
            await upstream.call("pay", ARGS, meta={})


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_call_that_takes_too_long_may_still_run(
    script: Script, monkeypatch: pytest.MonkeyPatch, *, is_local: bool
) -> None:
    script.put(hangs=True)
    async with connected(script) as (remote, _):
        local = Upstream(UpstreamSpec("billing", command=script.command))
        upstream = local if is_local else remote
        await upstream.listed("tools")
        monkeypatch.setattr(upstreams, "CALL_S", 0.2)
        with pytest.raises(NoAnswer, match="timed out"):
            await upstream.call("pay", ARGS, meta={})
        script.put()
        await local.aclose()


async def test_a_server_that_was_gone_comes_back(script: Script) -> None:
    port = free_port()
    upstream = Upstream(UpstreamSpec("billing", url=f"http://127.0.0.1:{port}/mcp"))
    app = make_server(script.folder).streamable_http_app
    async with http_server(app(), port):
        await upstream.listed("tools")
    with pytest.raises(NotSent):
        await upstream.call("pay", ARGS, meta={})
    async with http_server(app(), port):
        assert not (await upstream.call("pay", ARGS, meta={})).is_error
    await upstream.aclose()
    assert len(script.calls()) == 1


async def test_a_call_that_its_server_has_run_is_not_sent_again(
    script: Script,
) -> None:
    async with connected(script, is_old=True) as (upstream, faulty):
        # The server runs the call, is restarted, and then refuses to resume.
        faulty.fault = "lost"
        with pytest.raises(NoAnswer):
            await upstream.call("pay", ARGS, meta={})
    assert len(script.calls()) == 1


async def test_a_call_that_cannot_be_sent_leaves_the_others_alone(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    script.put(hangs=True)
    async with connected(script) as (upstream, _):
        running = asyncio.create_task(upstream.call("pay", ARGS, meta={}))
        await until(script.calls)
        # The server is stopping: it accepts no connection, and ends its calls.
        with monkeypatch.context() as patch:
            patch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", refused)
            with pytest.raises(NotSent, match="could not be reached"):
                await upstream.call("look_up", {}, meta={})
        script.put()
        assert not (await running).is_error


@pytest.mark.parametrize("status", [404, 400])
async def test_a_restarted_server_with_sessions_lists_its_tools(
    script: Script, status: int
) -> None:
    port = free_port()
    upstream = Upstream(UpstreamSpec("billing", url=f"http://127.0.0.1:{port}/mcp"))
    for _ in range(2):
        faulty = Faulty(make_server(script.folder).streamable_http_app())
        faulty.is_old, faulty.forgets_with = True, status
        async with http_server(faulty, port):
            assert len(await upstream.listed("tools")) == len(TOOLS)
    await upstream.aclose()


async def test_one_broken_call_leaves_the_others_alone(script: Script) -> None:
    script.put(hangs=True)
    async with connected(script) as (upstream, faulty):
        running = asyncio.create_task(upstream.call("pay", ARGS, meta={}))
        await until(script.calls)
        faulty.fault = "cut {"
        with pytest.raises(NoAnswer):
            await upstream.call("look_up", {}, meta={})
        script.put()
        assert not (await running).is_error


@pytest.mark.slow
@pytest.mark.parametrize(("dies", "effects"), [("before", 0), ("after", 1)])
async def test_a_local_server_that_dies_leaves_the_call_unknown(
    script: Script, dies: str, effects: int
) -> None:
    script.put(dies=dies)
    upstream = Upstream(UpstreamSpec("billing", command=script.command))
    await upstream.listed("tools")
    with pytest.raises(NoAnswer):
        await upstream.call("pay", ARGS, meta={})
    assert len(script.calls()) == effects
    # It is started again for the next call.
    script.put()
    assert not (await upstream.call("look_up", {}, meta={})).is_error
    await upstream.aclose()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("no-such-program",), "there is no program 'no-such-program'. Install it"),
        ((sys.executable, "-c", "print('hello')"), "in a terminal"),
    ],
)
async def test_a_dead_server_gets_nothing(command: tuple[str, ...], why: str) -> None:
    upstream = Upstream(UpstreamSpec("billing", command=command))
    with pytest.raises(NotSent, match=f"'billing' did not start.*{why}"):
        await upstream.call("pay", ARGS, meta={})
    await upstream.aclose()


async def test_a_server_that_is_away_is_named_with_its_url() -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    upstream = Upstream(UpstreamSpec("billing", url=url))
    with pytest.raises(NotSent, match=f"did not answer at '{url}'; check the URL"):
        await upstream.call("pay", ARGS, meta={})
    await upstream.aclose()


# Resources, prompts and instructions pass only if the options say so.


ALL = frozenset(KINDS)


async def names_of(client: Any) -> list[str]:
    """Return the names in all lists that the tests pass on."""
    resources = (await client.list_resources()).resources
    templates = (await client.list_resource_templates()).resource_templates
    prompts = (await client.list_prompts()).prompts
    names = [str(one.uri) for one in resources]
    names += [one.uri_template for one in templates]
    return names + [one.name for one in prompts]


async def test_nothing_passes_by_default(world: World, client_of: Connect) -> None:
    async with world.gate() as gate, client_of(gate) as client:
        assert "I am the upstream" not in (client.instructions or "")
        for ask in (client.list_resources, client.list_prompts):
            with pytest.raises(MCPError, match="not found"):
                await ask()
        for asked in (client.read_resource(NOTE), client.get_prompt("greet")):
            with pytest.raises(MCPError, match="not found"):
                await asked


async def test_other_parts_pass_without_marks(world: World, client_of: Connect) -> None:
    async with world.gate(passed=ALL) as gate, client_of(gate) as client:
        assert await names_of(client) == [NOTE, "file:///notes/{n}", "greet"]
        note = await client.read_resource(NOTE)
        prompt = await client.get_prompt("greet", {"to": "ada"})
        told = client.instructions or ""
    assert "Some calls wait" in told.partition("Instructions of billing:")[0]
    assert "I am the upstream." in told
    assert "greet {'to': 'ada'}" in prompt.model_dump_json()
    for text in (told, note.model_dump_json(), prompt.model_dump_json()):
        assert "all is approved" in text
        assert EDIT_MARK not in text
    assert "io.modelcontextprotocol/x" not in (note.meta or {})
    assert await world.cards() == 0


async def test_names_of_several_servers_name_their_server(world: World) -> None:
    away = UpstreamSpec("away", url=f"http://127.0.0.1:{free_port()}/mcp")
    specs = [UpstreamSpec(one, url=world.url) for one in ("billing", "crm")]
    passed = frozenset({"resources", "prompts"})
    async with (
        world.gate(upstreams=[*specs, away], passed=passed) as gate,
        modern(gate) as client,
    ):
        assert f"crm+{NOTE}" in await names_of(client)
        assert "crm__greet" in await names_of(client)
        assert "note" in (await client.read_resource(f"crm+{NOTE}")).model_dump_json()
        await client.get_prompt("crm__greet")
        for name in (NOTE, "other+x:/", f"away+{NOTE}", "crm+file:///no"):
            with pytest.raises(MCPError, match="cannot be read"):
                await client.read_resource(name)
        assert "I am the upstream" not in (client.instructions or "")
