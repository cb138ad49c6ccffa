"""Be one of many processes that use one standing approval at once."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from tests.service.standing import allowing_policy
from tests.store_secrets import SECRETS
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store


def serve(url: str, name: str, connection: Connection) -> None:
    """Ask for the refunds that are told, until the end.

    Each text is a customer and an amount: one refund of it is asked for, in a thread of
    this process's own. The id and kind of its verdict are sent back.
    """
    asyncio.run(_serve(url, name, connection))


async def _serve(url: str, name: str, connection: Connection) -> None:
    store, policy = Store(url, secrets=SECRETS), allowing_policy()
    agents = AgentService(store, lambda: policy)
    await store.conn.command("PING")
    connection.send({})
    while words := await asyncio.to_thread(connection.recv):
        customer, amount = words.split()
        ref = TurnRef(agent="support", thread=f"{customer} {name}", message_id="m")
        order = f"{customer}-{name}"
        args = {"customer": customer, "amount": int(amount), "order": order}
        call = ProposedCall(tool="process_refund", args=dict(args), tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        connection.send({"id": verdict.item_id, "kind": verdict.kind.value})
    await store.close()
