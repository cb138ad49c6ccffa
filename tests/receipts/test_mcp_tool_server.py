"""The example of a tool server refuses calls without a receipt, and runs the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.service.decided_calls import decided, gateway_keys
from tests.service.harness import POLICY, ServiceHarness

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "examples" / "mcp_tool_server.py"
ARGS: JsonObject = {"order_id": "A-1042", "amount": "60.00"}
APPROVED = POLICY.replace(
    "process_refund: {tier: approve}",
    "process_refund: {tier: approve, audience: payments}",
)


class Client:
    """Sends requests to the server as an agent does, with any content."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder, self._count = process, folder, 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        self._count += 1
        request = {"jsonrpc": "2.0", "id": self._count, "method": method}
        found = self.send(json.dumps({**request, "params": params}))
        assert found["id"] == self._count
        return found

    def send(self, line: str) -> dict[str, Any]:
        """Return the answer to a line."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def call(self, args: Any = ARGS, **params: Any) -> tuple[bool, str]:
        """Call the tool; return whether it ran, and its output."""
        given = {"name": "process_refund", "arguments": args, **params}
        result = self.ask("tools/call", **given)["result"]
        return not result["isError"], result["content"][0]["text"]

    def ran(self) -> list[dict[str, Any]]:
        """Return the executed refunds."""
        path = self._folder / "refunds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(APPROVED, "policy.yml"))


@pytest.fixture
def client(harness: ServiceHarness, tmp_path: Path) -> Generator[Client]:
    keys = " ".join(key.text for key in gateway_keys(harness))
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            "PYTHONPATH": str(ROOT / "src"),
            "PAYMENTS_KEYS": keys,
            "PAYMENTS_FOLDER": str(tmp_path),
        },
    ) as process:
        yield Client(process, tmp_path)
        assert process.stdin
        process.stdin.close()


async def receipt(harness: ServiceHarness) -> str:
    """Return the receipt of a refund that Ana approved as ARGS."""
    claim = await decided(harness, Edit(args=ARGS))
    return (await harness.granted(claim)).receipt


async def test_approved_calls_run_once(harness: ServiceHarness, client: Client) -> None:
    meta = {"dev.keyturn/receipt": await receipt(harness)}
    server = client.ask("initialize", protocolVersion="2025-06-18")
    [tool] = client.ask("tools/list")["result"]["tools"]

    is_done, said = client.call(_meta=meta)
    again = client.call(_meta=meta)

    assert server["result"]["serverInfo"]["name"] == "payments"
    assert tool["name"] == "process_refund"
    assert (is_done, said) == (True, "Refunded 60.00, approved by U0ANA.")
    assert again[0] is False
    assert "used" in again[1]
    [refund] = client.ran()
    assert refund["amount"] == "60.00"
    assert refund["key"].startswith("sha256:")


async def test_no_receipt_means_no_run(harness: ServiceHarness, client: Client) -> None:
    text = await receipt(harness)
    told = {"dev.keyturn/receipt": text}
    other: JsonObject = {**ARGS, "amount": "6000.00"}
    tries: list[tuple[Any, dict[str, Any]]] = [
        (ARGS, {}),
        (ARGS, {"_meta": None}),
        (ARGS, {"_meta": "approved"}),
        (ARGS, {"_meta": {"approved": True, "by": "U0ANA"}}),
        (ARGS, {"_meta": {"dev.keyturn/receipt": True}}),
        (ARGS, {"_meta": {"dev.keyturn/receipt": "approved by Ana"}}),
        (ARGS, {"_meta": {"dev.keyturn/receipt": text[:-2]}}),
        (ARGS, {"_meta": {"receipt": text}}),
        ({**ARGS, "receipt": text}, {}),
        ({**ARGS, "approved": True}, {"_meta": told}),
        (other, {"_meta": told}),
        ({}, {"_meta": told}),
        ("approved", {"_meta": told}),
        (ARGS, {"_meta": told, "name": "delete_everything"}),
    ]

    ran = [client.call(args, **params)[0] for args, params in tries]

    assert ran == [False] * len(tries)
    assert client.ran() == []
    # And the receipt is still valid for its call.
    assert client.call(_meta=told)[0]
