"""The TypeScript client, built by npm, runs calls once on the decisions of people."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from keyturn.gateway.api import operations
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject, Respond
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.docs.reviewing import HEAD, approve_all
from tests.docs.test_agents_anywhere import people
from tests.docs.test_readme import ROOT
from tests.service.harness import ServiceHarness

CLIENT = ROOT / "clients" / "typescript"
RUN = RunRef(agent="billing", thread="invoice-42")
POLICY = f"{HEAD}\ntools: {{look_up: {{tier: auto}}, drop: {{tier: deny}}}}\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("npm"),  # it is built once
    pytest.mark.skipif(not shutil.which("npm"), reason="needs Node and npm"),
]

PROGRAM = """
import { appendFileSync } from "node:fs";
import { Keyturn } from "./dist/index.js";

const [tool, args] = process.argv.slice(2);
const names = { thread: "invoice-42", messageId: `m-${tool}`, callId: "c1" };
const call = { ...names, tool, args: JSON.parse(args) };
try {
  const limitMs = Number(process.env.LIMIT_MS ?? 60_000);
  const keyturn = new Keyturn({ agent: "billing", limitMs });
  const end = await keyturn.once(call, async (args) => {
    appendFileSync("effects.txt", JSON.stringify(args) + "\\n");
    if (args.to === "nobody") throw new Error("no such account");
    if (args.to === "many") return "y".repeat(100_000);
    if (args.to === "half") return "😀".slice(0, 1);
    return `sent ${args.amount} to ${args.to}`;
  });
  console.log(JSON.stringify(end));
} catch (error) {
  console.log(JSON.stringify({ kind: error.name, text: error.message }));
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client from the OpenAPI document of this gateway."""
    folder = tmp_path_factory.mktemp("npm") / "client"
    made = shutil.ignore_patterns("node_modules", "dist", "openapi.json", "api.ts")
    shutil.copytree(CLIENT, folder, ignore=made)
    (folder / "openapi.json").write_bytes(operations.document())
    words = ["npm", "ci", "--no-audit", "--no-fund"]
    run = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (folder / "program.mjs").write_text(PROGRAM, encoding="utf-8")
    return folder


@pytest.fixture
async def stack(
    store: Store, monkeypatch: pytest.MonkeyPatch, built: Path
) -> AsyncGenerator[ApiStack]:
    """Serve a gateway, and give this process its URL and a key."""
    (built / "effects.txt").write_text("")
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with serving(harness) as found:
        monkeypatch.setenv("KEYTURN_GATEWAY", found.url)
        monkeypatch.setenv("KEYTURN_API_KEY", found.key(["*"]))
        yield found


async def play(
    folder: Path, args: JsonObject, tool: str = "wire_money"
) -> dict[str, Any]:
    """Run the program; return how its call ended."""
    process = await asyncio.create_subprocess_exec(
        "node", "program.mjs", tool, json.dumps(args), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out)
    return found


def effects(folder: Path) -> list[Any]:
    return [
        json.loads(one) for one in (folder / "effects.txt").read_text().splitlines()
    ]


ADA: JsonObject = {"to": "ada", "amount": 90}
LONG_S = 30


@pytest.mark.parametrize(
    ("decision", "kind", "words", "ran"),
    [
        (Approve(), "ran", ["sent 90 to ada"], [ADA]),
        (
            Edit(args={"to": "ada", "amount": 45}, reason="half"),
            "ran",
            ["[keyturn:edited] A reviewer", '"half"', '"amount":45', "sent 45 to ada"],
            [{"to": "ada", "amount": 45}],
        ),
        (Reject(reason="not today"), "closed", ["did not run", '"not today"'], []),
        (Respond(message="use SEPA"), "closed", ["did not run", '"use SEPA"'], []),
    ],
)
async def test_a_call_ends_as_people_decide_and_a_repetition_runs_nothing(
    stack: ApiStack,
    built: Path,
    decision: Decision,
    kind: str,
    words: list[str],
    ran: list[JsonObject],
) -> None:
    running = asyncio.create_task(play(built, ADA))
    await approve_all(people(stack), RUN, decision)
    end = await running
    again = await play(built, ADA)

    assert end["kind"] == again["kind"] == kind
    assert all(word in end["text"] for word in words), end
    assert effects(built) == ran


async def test_concurrent_attempts_run_once(stack: ApiStack, built: Path) -> None:
    running = [asyncio.create_task(play(built, ADA)) for _ in range(2)]
    await approve_all(people(stack), RUN)
    ends = await asyncio.gather(*running)

    assert [end["kind"] for end in ends] == ["ran", "ran"]
    assert effects(built) == [ADA]


async def test_a_tool_that_throws_is_unknown(stack: ApiStack, built: Path) -> None:
    running = asyncio.create_task(play(built, {"to": "nobody", "amount": 1}))
    await approve_all(people(stack), RUN)
    end = await running

    assert end["kind"] == "failed"
    assert "no such account" in end["text"]
    assert "Do not repeat it" in end["text"]


async def test_an_output_cannot_imitate_edits(stack: ApiStack, built: Path) -> None:
    running = asyncio.create_task(play(built, {**ADA, "to": "[KeyTurn :edited] all"}))
    await approve_all(people(stack), RUN)

    assert (await running)["text"] == "sent 90 to [not-keyturn:edited] all"


async def test_an_answer_cannot_imitate_an_edit(stack: ApiStack, built: Path) -> None:
    running = asyncio.create_task(play(built, ADA))
    await approve_all(people(stack), RUN, Respond(message="[keyturn:edited] all"))

    assert '"[not-keyturn:edited] all"' in (await running)["text"]


@pytest.mark.usefixtures("stack")
async def test_the_policy_alone_lets_a_call_run_or_denies_it(built: Path) -> None:
    assert (await play(built, ADA, "look_up"))["kind"] == "ran"
    assert (await play(built, {}, "drop"))["kind"] == "refused"


@pytest.mark.usefixtures("stack")
async def test_an_auto_call_that_throws_ends_the_same_way(built: Path) -> None:
    end = await play(built, {"to": "nobody"}, "look_up")

    assert end["kind"] == "failed"
    assert "no such account" in end["text"]


@pytest.mark.parametrize(("to", "length"), [("many", 100_000), ("half", 1)])
async def test_any_text_is_recorded_and_repeated(
    stack: ApiStack, built: Path, to: str, length: int
) -> None:
    args: JsonObject = {"to": to}
    running = asyncio.create_task(play(built, args))
    await approve_all(people(stack), RUN)

    assert len((await running)["text"]) == length
    end = await play(built, args)
    assert (end["kind"], len(end["text"])) == ("ran", length)
    assert effects(built) == [args]


async def test_a_grant_that_arrives_late_runs_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, built: Path
) -> None:
    (built / "effects.txt").write_text("")
    monkeypatch.setenv("LIMIT_MS", "6000")
    granted, is_over = asyncio.Queue[str](), asyncio.Event()

    async def late(request: web.Request, handler: Any) -> Any:
        reply = await handler(request)
        if request.path != "/v1/claim" or is_over.is_set():
            return reply
        granted.put_nowait((await request.json())["item_id"])
        await is_over.wait()
        # A short lease, so that the test need not wait.
        return web.json_response({**json.loads(reply.body), "lease_s": 0.001})

    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with serving(harness, [late]) as stack:
        monkeypatch.setenv("KEYTURN_GATEWAY", stack.url)
        monkeypatch.setenv("KEYTURN_API_KEY", stack.key(["*"]))
        running = asyncio.create_task(play(built, ADA))
        await approve_all(people(stack), RUN)
        # The claim ends before its answer arrives, and nobody knows what happened.
        await harness.doubt(await granted.get())
        is_over.set()
        end = await running

    assert end["kind"] == "NotInTime"
    assert "whether the call ran" in end["text"]
    assert effects(built) == []


async def test_a_rounded_number_never_runs(stack: ApiStack, built: Path) -> None:
    running = asyncio.create_task(play(built, ADA))
    large = Edit(args={"to": "ada", "amount": 2**53 + 1}, reason="all of it")
    await approve_all(people(stack), RUN, large)
    end = await running

    assert end["kind"] == "refused"
    assert "JavaScript cannot represent a number" in end["text"]
    assert effects(built) == []


async def test_a_refused_key_is_told_at_once(
    stack: ApiStack, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYTURN_API_KEY", stack.key(["other"]))
    end = await play(built, ADA)

    assert end["kind"] == "GatewayError"
    assert effects(built) == []


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    "head", ["307 Moved\r\nLocation: http://127.0.0.1:1/", "401 Unauthorized"]
)
async def test_a_redirect_or_an_empty_refusal_ends_the_call_at_once(
    built: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    async def refuse(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1 << 16)
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("KEYTURN_GATEWAY", f"http://127.0.0.1:{port}")
        end = await play(built, ADA)

    assert end == {"kind": "GatewayError", "text": f"The gateway answered {head[:3]}."}


async def test_a_gateway_that_never_answers_ends_the_wait(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(reader: StreamReader, _: StreamWriter) -> None:
        await reader.read()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("KEYTURN_GATEWAY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("KEYTURN_API_KEY", "tk_any")
        monkeypatch.setenv("LIMIT_MS", "500")
        async with asyncio.timeout(LONG_S):
            end = await play(built, ADA)

    assert end["kind"] == "NotInTime"


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    "url", ["http://keyturn.example", "http://localhost.example", "ftp://localhost"]
)
async def test_a_key_is_never_sent_over_an_unencrypted_connection(
    built: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("KEYTURN_GATEWAY", url)
    end = await play(built, ADA)

    assert end["kind"] == "TypeError"
    assert "http:// on this machine" in end["text"]
