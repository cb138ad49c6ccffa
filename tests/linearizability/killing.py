"""Kill programs and nodes one after the other during the work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import cycle

from tests.linearizability.audited import Death
from tests.linearizability.servers import Server
from tests.races.test_failovers import Kills
from tests.topologies import SentinelSet, until

_KILL_EVERY_S = 8.0
_LOOK_AGAIN_S = 1.0


async def kill_servers(
    bots: Sequence[Server], gateways: Sequence[Server], deaths: list[Death]
) -> None:
    """Kill a bot, then a gateway, and so on."""
    names = [
        name
        for pair in zip(bots, gateways, strict=True)
        for name in zip(("bot", "gateway"), pair, strict=True)
    ]
    for kind, one in cycle(names):
        await asyncio.sleep(_KILL_EVERY_S)
        at = _now_ms()
        await asyncio.shield(asyncio.to_thread(one.kill))
        deaths.append(Death(kind, at))


async def revive(servers: Sequence[Server]) -> None:
    """Restart ended processes, killed or not, as a supervisor does."""
    while True:
        await asyncio.sleep(_LOOK_AGAIN_S)
        for one in servers:
            if one.has_ended:
                await asyncio.shield(asyncio.to_thread(one.start))


async def kill_nodes(
    nodes: SentinelSet, deaths: list[Death], say: Callable[[str], object]
) -> None:
    """Kill the master every second time, else any node; record each with its role."""
    kills = Kills(nodes, nodes.master)

    def kill() -> Death:
        until(nodes.is_whole, "all of the store is whole before the next one dies")
        master, at = nodes.master(), _now_ms()
        node = kills.kill_one()
        if node is master:
            return Death("master", at)
        return Death("Sentinel" if node in nodes.sentinels else "replica", at)

    while True:
        await asyncio.sleep(_KILL_EVERY_S)
        try:
            deaths.append(await asyncio.shield(asyncio.to_thread(kill)))
        except AssertionError as late:
            # A busy machine takes longer: dead processes are started, and killing goes
            # on.
            say(f"the store is not whole: {late}")
            for node in nodes.nodes:
                if not node.is_running:
                    await asyncio.to_thread(node.start)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
