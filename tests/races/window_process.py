"""Be one of several processes that ask for refunds of the same customers at once.

Usage: window_process.py STORE_URL NAME CALLS
Each line read names a customer: that many refunds of 900 are asked for at once, in
threads of this process's own agent, one of them in a turn that all processes submit.
What each came to goes out as one JSON line: an array of {id, tier, kind}, the shared
turn's first.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.service.windowed import refund, windowed_policy
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store

AMOUNT = 900


async def main(url: str, name: str, calls: int) -> None:
    """Ask for refunds until standard input ends."""
    store, policy = Store(url), windowed_policy()
    agents = AgentService(store, lambda: policy)

    async def ask(agent: str, thread: str, customer: str) -> Verdict:
        tool, args = refund(AMOUNT, customer)
        ref = TurnRef(agent=agent, thread=thread, message_id="m")
        call = ProposedCall(tool=tool, args=args, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        return verdict

    await store.conn.command("PING")
    _say([])
    while customer := (await asyncio.to_thread(sys.stdin.readline)).strip():
        own = (ask(name, f"{customer} {n}", customer) for n in range(calls))
        verdicts = await asyncio.gather(ask("shared", customer, customer), *own)
        _say([{"id": v.item_id, "tier": v.tier, "kind": v.kind} for v in verdicts])
    await store.close()


def _say(row: list[dict[str, str]]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
