"""A tool server that runs calls only with a receipt, independently of its agent.

    PAYMENTS_KEYS='keyturn/gateway+…' python examples/mcp_tool_server.py

It implements the Model Context Protocol (one JSON-RPC 2.0 message a line, on stdin and
stdout) with the standard library, so that every step is visible here. The agent sends
the receipt of an approved call in ``_meta`` (`keyturn.agent.receipt_meta`). This
process has the gateway's public key (a line of ``keyturn keys list``) and a file of
used receipts; it needs no connection to the gateway.

Behind an MCP gate (`keyturn mcp --upstream billing=…`), the gate sends the receipt. The
policy then knows the tool as ``billing__process_refund``: set PAYMENTS_TOOL to that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from keyturn.receipts import META_KEY, NotVerified, SqliteLedger, Verifier

PROTOCOL = "2025-11-25"
METHOD_UNKNOWN, PARAMS_WRONG, NOT_JSON = -32601, -32602, -32700

TOOLS: list[dict[str, Any]] = [
    {
        "name": "process_refund",
        "description": "Refund an order. A person has to approve it.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "order_id": {"type": "string"},
                "amount": {"type": "string"},
            },
            "required": ["order_id", "amount"],
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": True},
    }
]


class ToolServer:
    """The tools, and the check before each run.

    Args:
        verifier: has the gateway's keys and the ledger of used receipts.
        refunds: a file to which each refund is written.
        policy_name: name of the tool in the policy, for which receipts are given.
    """

    def __init__(
        self, verifier: Verifier, refunds: Path, policy_name: str = "process_refund"
    ) -> None:
        self._verifier = verifier
        self._policy_name = policy_name
        self._refunds = refunds

    def answer(self, line: str) -> dict[str, Any] | None:
        """Return the answer to one message; None for a notification."""
        try:
            message: dict[str, Any] = json.loads(line)
            method, number = message["method"], message.get("id")
            params: object = message.get("params") or {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _error(None, NOT_JSON, "this is not a JSON-RPC message")
        if number is None:
            return None
        match method:
            case "initialize":
                result: dict[str, Any] = {
                    "protocolVersion": PROTOCOL,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "payments", "version": "1"},
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call":
                if not isinstance(params, dict):
                    return _error(number, PARAMS_WRONG, "params are an object")
                result = self._call(cast("dict[str, Any]", params))
            case _:
                return _error(number, METHOD_UNKNOWN, "this method is unknown")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        tool, args, meta = (params.get(key) for key in ("name", "arguments", "_meta"))
        if tool != "process_refund" or not isinstance(args, dict):
            return _text("There is no such tool.", is_error=True)
        args = cast("dict[str, Any]", args)
        told = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
        receipt = told.get(META_KEY)
        try:
            # First of all: the agent's claims about the call do not count.
            proof = self._verifier.verify(
                receipt if isinstance(receipt, str) else "",
                tool=self._policy_name,
                args=args,
            )
        except NotVerified as error:
            # The error has one word for programs; the model reads that the tool did not
            # run.
            return _text(f"Nothing ran. {error}", is_error=True)
        people = ", ".join(one.user for one in proof.approvers)
        with self._refunds.open("a", encoding="utf-8") as file:
            # A payment provider would get this key too: it is the same for each
            # attempt.
            file.write(json.dumps({**args, "key": proof.idempotency_key}) + "\n")
        return _text(
            f"Refunded {args['amount']}, approved by {people or 'the policy'}."
        )


def _text(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _error(number: object, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}


def main() -> None:
    """Serve until stdin ends."""
    folder = Path(os.environ.get("PAYMENTS_FOLDER", "."))
    verifier = Verifier(
        audience="payments",
        keys=os.environ["PAYMENTS_KEYS"].split(),
        ledger=SqliteLedger(folder / "used-receipts.db"),
        needs_people=True,
    )
    name = os.environ.get("PAYMENTS_TOOL", "process_refund")
    server = ToolServer(verifier, folder / "refunds.jsonl", name)
    for line in sys.stdin:
        reply = server.answer(line)
        if reply is not None:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
