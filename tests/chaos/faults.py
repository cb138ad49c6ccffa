"""Choose faults by a seed, and cause them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psycopg

from keyturn.sandbox.faults import DeliveryFault, Fault
from tests.chaos.stack import LEASE_MS, ROLES, Stack

LEASE_S = LEASE_MS / 1000
_END_SESSIONS = """
select pg_terminate_backend(pid) from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
"""
GATEWAYS = [name for name, role in ROLES.items() if role == "gateway"]
BOTS = [name for name, role in ROLES.items() if role == "bot"]


@dataclass
class Chaos:
    """Faults, one after another, each in a separate task.

    Attributes:
        done: the faults, as they are printed.
        counts: number of faults of each kind.
    """

    stack: Stack
    dice: random.Random
    done: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def rage(self, seconds: float, *, pause_s: float) -> None:
        """Do faults for a while, about one every ``pause_s`` seconds."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        kinds: list[tuple[str, Callable[[random.Random], Awaitable[None]], int]] = [
            ("kill", partial(self._end, signal.SIGKILL), 3),
            ("stop", self._stop, 4),
            ("restart", partial(self._end, signal.SIGTERM), 1),
            ("cut store", partial(self._cut, "store", [*ROLES]), 3),
            ("cut checkpoints", partial(self._cut, "postgres", GATEWAYS), 2),
            ("cut slack", partial(self._cut, "slack", BOTS), 2),
            ("slack fault", self._slack_fault, 2),
            ("duplicate", self._duplicate, 2),
            ("policy", self._policy, 1),
            ("kill store", self._kill_store, 1),
            ("end sessions", self._end_sessions, 1),
        ]
        while (at := loop.time() - start) < seconds:
            [(name, fault, _)] = self.dice.choices(kinds, [one[2] for one in kinds])
            # Separate dice: the duration of a fault does not change the next ones.
            own = random.Random(self.dice.random())  # noqa: S311 - no secret
            self.counts[name] += 1
            self._begin(name, fault(own), at)
            await asyncio.sleep(self.dice.uniform(0.5, 1.5) * pause_s)
        await asyncio.gather(*self._running)

    def _begin(self, name: str, fault: Awaitable[None], at: float) -> None:
        self.done.append(f"{at:6.1f} s  {name}")
        task = asyncio.ensure_future(fault)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _note(self, text: str) -> None:
        self.done[-1] += f" {text}"

    async def _end(self, how: signal.Signals, dice: random.Random) -> None:
        name = dice.choice([*ROLES])
        self._note(name)
        await self.stack.members[name].end(how)

    async def _stop(self, dice: random.Random) -> None:
        name, for_s = dice.choice([*ROLES]), dice.uniform(0.1, 3 * LEASE_S)
        self._note(f"{name} for {for_s:.1f} s")
        member = self.stack.members[name]
        member.send(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        member.send(signal.SIGCONT)

    async def _cut(self, network: str, names: list[str], dice: random.Random) -> None:
        name, for_s = dice.choice(names), dice.uniform(0.1, 3 * LEASE_S)
        self._note(f"of {name} for {for_s:.1f} s")
        cut = self.stack.members[name].cuts[network]
        cut.close()
        await asyncio.sleep(for_s)
        cut.open()

    async def _slack_fault(self, dice: random.Random) -> None:
        fault = dice.choice((Fault.LOST_RESPONSE, Fault.HTTP_500, Fault.RESET))
        self._note(fault.value)
        self.stack.sandbox.faults.plan(fault, calls=dice.randint(1, 3))

    async def _duplicate(self, dice: random.Random) -> None:
        fault = dice.choice((DeliveryFault.DUPLICATE, DeliveryFault.RETRY_HEADERS))
        self._note(fault.value)
        self.stack.sandbox.faults.plan_delivery(fault, deliveries=dice.randint(1, 3))

    async def _policy(self, dice: random.Random) -> None:
        expires = f"{dice.randint(2, 9)}h"
        refund = dice.choice(("approve", "escalate"))
        self._note(f"expires_in {expires}, refund {refund}")
        self.stack.set_policy(expires, refund)

    async def _kill_store(self, dice: random.Random) -> None:
        """Kill the server of the store, which is restarted automatically."""
        del dice
        if pid := self.stack.engine.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _end_sessions(self, dice: random.Random) -> None:
        """End every session of Postgres, as its restart does."""
        del dice
        connection = await psycopg.AsyncConnection.connect(self.stack.postgres)
        async with connection:
            await connection.execute(_END_SESSIONS)
