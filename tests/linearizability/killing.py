"""Kill programs and nodes one after the other for as long as somebody works."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle

from tests.linearizability.servers import Server
from tests.races.test_failovers import Kills
from tests.topologies import SentinelSet, until

_KILL_EVERY_S = 8.0
_LOOK_AGAIN_S = 1.0


async def kill_servers(
    bots: Sequence[Server], gateways: Sequence[Server], killed: Counter[str]
) -> None:
    """Kill a bot, then a gateway, and so on; count them."""
    names = [
        name
        for pair in zip(bots, gateways, strict=True)
        for name in zip(("bot", "gateway"), pair, strict=True)
    ]
    for kind, one in cycle(names):
        await asyncio.sleep(_KILL_EVERY_S)
        await asyncio.shield(asyncio.to_thread(one.kill))
        killed[kind] += 1


async def revive(servers: Sequence[Server]) -> None:
    """Start again what ended, killed or by itself, as whatever runs services does."""
    while True:
        await asyncio.sleep(_LOOK_AGAIN_S)
        for one in servers:
            if one.has_ended:
                await asyncio.shield(asyncio.to_thread(one.start))


async def kill_nodes(
    nodes: SentinelSet, killed: Counter[str], say: Callable[[str], object]
) -> None:
    """Kill the master every second time, else any node; count each as what it was."""
    kills = Kills(nodes, nodes.master)

    def kill() -> str:
        until(nodes.is_whole, "all of the store is whole before the next one dies")
        master = nodes.master()
        node = kills.kill_one()
        if node is master:
            return "master"
        return "Sentinel" if node in nodes.sentinels else "replica"

    while True:
        await asyncio.sleep(_KILL_EVERY_S)
        try:
            killed[await asyncio.shield(asyncio.to_thread(kill))] += 1
        except AssertionError as late:
            # A busy machine takes longer: what is dead is started, and killing goes on.
            say(f"the store is not whole: {late}")
            killed["node, not whole within a minute"] += 1
            for node in nodes.nodes:
                if not node.is_running:
                    await asyncio.to_thread(node.start)
