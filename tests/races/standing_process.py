"""Be one of many processes that use one standing approval at once.

Usage: standing_process.py STORE_URL NAME
Each line read is a customer and an amount: one refund of it is asked for, in a thread
of this process's own. Its verdict goes out as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.service.standing import allowing_policy
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store


async def main(url: str, name: str) -> None:
    """Ask for refunds until standard input ends."""
    store, policy = Store(url), allowing_policy()
    agents = AgentService(store, lambda: policy)
    await store.conn.command("PING")
    _say({})
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        customer, amount = line.split()
        ref = TurnRef(agent="support", thread=f"{customer} {name}", message_id="m")
        order = f"{customer}-{name}"
        args = {"customer": customer, "amount": int(amount), "order": order}
        call = ProposedCall(tool="process_refund", args=dict(args), tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        _say({"id": verdict.item_id, "kind": verdict.kind.value})
    await store.close()


def _say(row: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
