"""Be one of many processes that use one standing approval at once."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.service.standing import allowing_policy
from tests.store_secrets import SECRETS


def serve(url: str, name: str, connection: Connection) -> None:
    """Request the named refunds until the end of the input.

    Each text is a customer and an amount: one refund is requested, in a separate thread
    of this process. The id and kind of its verdict are sent back.
    """
    asyncio.run(_serve(url, name, connection))


async def _serve(url: str, name: str, connection: Connection) -> None:
    store, policy = Store(url, secrets=SECRETS), allowing_policy()
    await store.conn.command("PING")
    await _answer(AgentService(store, lambda: policy), name, connection)
    await store.close()


async def _answer(agents: AgentService, name: str, connection: Connection) -> None:
    connection.send({})
    while words := await asyncio.to_thread(connection.recv):
        customer, amount = words.split()
        ref = TurnRef(agent="support", thread=f"{customer} {name}", message_id="m")
        order = f"{customer}-{name}"
        args = {"customer": customer, "amount": int(amount), "order": order}
        call = ProposedCall(tool="process_refund", args=dict(args), tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        connection.send({"id": verdict.item_id, "kind": verdict.kind.value})
