"""`keyturn hook codex`: each unclear answer ends with 2 and a reason."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from keyturn.connect.codex_hook import NoAnswer, ask
from keyturn.connect.coding_agents import ANSWER_HEADER
from keyturn.gateway.approvals.decisions import Approve, Reject
from tests.connect.coding_agents.conftest import Hooks

Handler = Callable[[web.Request], Any]
DENIAL = {
    "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "no",
    }
}


async def ran(
    url: str, body: object, *options: str, key: str = "tk_x", more: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, *more, "-m", "keyturn", "hook", "codex", *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"KEYTURN_GATEWAY": url, "KEYTURN_API_KEY": key, "PYTHONPATH": _PATH},
    )
    out, err = await program.communicate(json.dumps(body).encode())
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()


_PATH = ":".join(sys.path)


@asynccontextmanager
async def answering(handler: Handler) -> AsyncGenerator[str]:
    """Serve a gateway that answers with this handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("answer", [{}, DENIAL])
async def test_a_clear_answer_is_written_as_it_is(answer: dict[str, Any]) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer, headers={ANSWER_HEADER: "1"})

    async with answering(handler) as url:
        code, out, _ = await ran(url, {})

    assert (code, json.loads(out)) == (0, answer)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (200, ""),
        (200, "<html>sign in</html>"),
        (200, "[]"),
        (200, '{"a": 1}'),
        (200, json.dumps(DENIAL).replace('"no"', '" "')),
        (200, json.dumps(DENIAL).replace('"deny"', '"Deny"')),
        (200, json.dumps(DENIAL).replace('"deny"', '"allow"')),
        (302, ""),
        (401, '{"detail": "Send a key."}'),
        (500, ""),
        (503, "{}"),
    ],
)
async def test_an_answer_codex_would_ignore_blocks(status: int, text: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        headers = {"Location": "/x", ANSWER_HEADER: "1"}
        return web.Response(status=status, text=text, headers=headers)

    async with answering(handler) as url:
        with pytest.raises(NoAnswer) as caught:
            await asyncio.to_thread(ask, b"{}", url, "tk_x")

    # Without a reason, Codex runs the call.
    assert str(caught.value).strip()


@pytest.mark.parametrize("answer", [{}, DENIAL])
async def test_an_answer_of_another_server_blocks(answer: dict[str, Any]) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer)

    async with answering(handler) as url:
        code, out, err = await ran(url, {})

    assert (code, out) == (2, "")
    assert "check the gateway's URL" in err


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_with_the_way_to_another(status: int) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"detail": "No such key."}, status=status)

    async with answering(handler) as url:
        code, _, err = await ran(url, {})

    assert code == 2
    assert err.startswith("This call did not run: No such key. Ask the user to")
    assert "KEYTURN_API_KEY" in err
    assert "keyturn api-keys create" in err


async def test_a_failure_ends_with_two_and_a_reason() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with answering(handler) as url:
        code, out, err = await ran(url, {})

    assert (code, out) == (2, "")
    assert "500" in err
    assert "Traceback" not in err


async def test_a_gateway_that_is_away_blocks_the_call() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        code, _, err = await ran(f"http://127.0.0.1:{unused.getsockname()[1]}", {})

    assert code == 2
    assert "does not answer" in err


@pytest.mark.parametrize("url", ["", "gateway.example", "https://[", "http://x:y"])
async def test_a_url_that_cannot_be_used_blocks_the_call(url: str) -> None:
    code, out, err = await ran(url, {})

    assert (code, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err


async def test_an_unknown_option_blocks_the_call() -> None:
    code, _, err = await ran("http://127.0.0.1:1", {}, "--colour")

    assert code == 2
    assert err.strip()


async def test_a_call_of_codex_passes_the_gateway(hooks: Hooks) -> None:
    url, body = hooks.stack.url, hooks.body()

    await hooks.ask(body, of="codex", wait_s=0)
    await hooks.decide(Approve())
    code, out, _ = await ran(url, body, key=hooks.key)
    assert (code, json.loads(out)) == (0, {})

    other = hooks.body("make -j")
    await hooks.ask(other, of="codex", wait_s=0)
    await hooks.decide(Reject(reason="too many"))
    code, out, _ = await ran(url, other, key=hooks.key)
    assert code == 0
    assert "too many" in out


async def test_a_missing_key_blocks_the_call_and_is_named() -> None:
    code, out, err = await ran("http://127.0.0.1:1", {}, key="")

    assert (code, out) == (2, "")
    assert "KEYTURN_API_KEY is not set" in err


async def test_the_hook_imports_no_large_package() -> None:
    _, _, err = await ran("", {}, more=("-X", "importtime"))

    imported = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "keyturn.connect.coding_agents" in imported
    assert not {"pydantic", "typer", "asyncio", "aiohttp"} & imported
