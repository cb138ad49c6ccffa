"""Be one of several processes that ask for refunds of the same customers at once."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from tests.races.asking_processes import Place, asked_at
from tests.service.windowed import refund, windowed_policy

AMOUNT = 900


def serve(place: Place, name: str, calls: int, connection: Connection) -> None:
    """Request refunds of the named customers until the end of the input.

    Each text names a customer: that many refunds of 900 are requested at once, in
    threads of this process's agent, one of them in a turn that all processes submit.
    The results are sent back: a list of {id, tier, kind}, the shared turn's first.
    """
    asyncio.run(_serve(place, name, calls, connection))


async def _serve(place: Place, name: str, calls: int, connection: Connection) -> None:
    async with asked_at(place, windowed_policy()) as agents:
        await _answer(agents, name, calls, connection)


async def _answer(
    agents: Gateway, name: str, calls: int, connection: Connection
) -> None:
    async def ask(agent: str, thread: str, customer: str) -> Verdict:
        tool, args = refund(AMOUNT, customer)
        ref = TurnRef(agent=agent, thread=thread, message_id="m")
        call = ProposedCall(tool=tool, args=args, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        return verdict

    connection.send([])
    while customer := await asyncio.to_thread(connection.recv):
        own = (ask(name, f"{customer} {n}", customer) for n in range(calls))
        verdicts = await asyncio.gather(ask("shared", customer, customer), *own)
        connection.send(
            [{"id": v.item_id, "tier": v.tier, "kind": v.kind} for v in verdicts]
        )
