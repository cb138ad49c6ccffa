"""Be one of many processes that use one standing approval at once."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from tests.races.asking_processes import Place, asked_at
from tests.service.standing import allowing_policy


def serve(place: Place, name: str, connection: Connection) -> None:
    """Request the named refunds until the end of the input.

    Each text is a customer and an amount: one refund is requested, in a separate thread
    of this process. The id and kind of its verdict are sent back.
    """
    asyncio.run(_serve(place, name, connection))


async def _serve(place: Place, name: str, connection: Connection) -> None:
    async with asked_at(place, allowing_policy()) as agents:
        await _answer(agents, name, connection)


async def _answer(agents: Gateway, name: str, connection: Connection) -> None:
    connection.send({})
    while words := await asyncio.to_thread(connection.recv):
        customer, amount = words.split()
        ref = TurnRef(agent="support", thread=f"{customer} {name}", message_id="m")
        order = f"{customer}-{name}"
        args = {"customer": customer, "amount": int(amount), "order": order}
        call = ProposedCall(tool="process_refund", args=dict(args), tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        connection.send({"id": verdict.item_id, "kind": verdict.kind.value})
