"""Register the processes of a tenant, with the configuration that they must share.

One hash has three kinds of fields. ``p:`` is a process and the end of its lifetime.
``r:`` is the reason why a process was refused, for operators. ``a:`` is the place of an
agent's threads, permanently. A process joins only if no other one joined since it
compared itself with the others, so two incompatible processes never both join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository, write_if

LIFE_MS = 20_000
"""Lifetime of a process after its last heartbeat."""

REFUSAL_MS = 10 * 60 * 1000
"""How long the refusal of a process is shown."""


class ProcessInfo(Record, extra="ignore"):
    """A process's description of itself; versions compare the fields that both have.

    Attributes:
        role: ``gateway`` or ``bot``.
        where: host and process id, for people.
        tenant: tenant of its approvals.
        agents: agents for which it advances some or all threads.
        serves: agents for which it advances every thread.
        checkpoints: id of the database of their threads; "" for a bot.
        file: machine and path of the database; "" if it is not a file.
        shown: the database in words for people.
        seals: id of the key that seals its buttons; "" for a gateway.
        accepts: ids of all keys whose seals it accepts.
        ahead_s: how far its clock is ahead of the store's; 0 if the difference is too
            small to notice.
    """

    role: str
    where: str
    tenant: str
    agents: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    checkpoints: str = ""
    file: str = ""
    shown: str = ""
    seals: str = ""
    accepts: tuple[str, ...] = ()
    ahead_s: int = 0


class AgentCheckpoints(Record, extra="ignore"):
    """The place of an agent's threads; "" if a program chooses it for each thread."""

    tenant: str
    agent: str
    checkpoints: str = ""
    shown: str = ""

    @property
    def field(self) -> str:
        """Return the field in the hash."""
        return f"a:{json.dumps([self.tenant, self.agent])}"


@dataclass(frozen=True)
class Processes:
    """The registry in one snapshot.

    Attributes:
        revision: changes whenever a process joins.
        alive: processes by name, with the end of their lifetime (store's clock, ms).
        kept: place of the threads, by tenant and agent.
        refused: sentences about recently refused processes.
    """

    revision: str
    alive: Mapping[str, tuple[ProcessInfo, int]]
    kept: Mapping[tuple[str, str], AgentCheckpoints]
    refused: tuple[str, ...]


class ProcessStore(Repository):
    """The processes of each tenant."""

    life_ms = LIFE_MS

    async def read(self, keys: Keys) -> Processes:
        """Read the registry; raises `StoreUnavailable`."""
        clock = self._conn.clock
        asked_s = clock.asking()
        found, now_ms = await self._conn.hash_now(keys.members)
        clock.answered(now_ms / 1000, asked_s)
        alive: dict[str, tuple[ProcessInfo, int]] = {}
        kept: dict[tuple[str, str], AgentCheckpoints] = {}
        refused: list[str] = []
        over: list[str] = []
        for name, value in found.items():
            kind, _, rest = name.partition(":")
            ends, _, body = text(value).partition(" ")
            if kind == "a":
                one = AgentCheckpoints.model_validate_json(value)
                kept[one.tenant, one.agent] = one
            elif kind in {"p", "r"} and int(ends) < now_ms:
                over.append(name)
            elif kind == "p":
                alive[rest] = (ProcessInfo.model_validate_json(body), int(ends))
            elif kind == "r":
                refused.append(body)
        if some := over[:1000]:
            # No more than a script takes; the next reading drops the others. Only if
            # none of them has sent a heartbeat since.
            checks = [(["HGET", keys.members, one], found[one]) for one in some]
            await write_if(self._conn, keys, checks, ["HDEL", keys.members, *some])
        revision = text(found.get("rev", b"0"))
        return Processes(revision, alive, kept, tuple(sorted(refused)))

    async def join(
        self,
        keys: Keys,
        name: str,
        process: ProcessInfo,
        *,
        seen: str,
        kept: tuple[AgentCheckpoints, ...] = (),
    ) -> bool:
        """Register a process; False if another one joined since ``seen`` was read."""
        members = keys.members
        row = await self._row(keys, process.model_dump_json(), self.life_ms)
        places = [["HSET", members, one.field, one.model_dump_json()] for one in kept]
        checks = [(["HGET", members, "rev"], "" if seen == "0" else seen)]
        return await write_if(
            self._conn,
            keys,
            checks,
            ["HSET", members, f"p:{name}", row],
            *places,
            ["HINCRBY", members, "rev", 1],
        )

    async def _row(self, keys: Keys, body: str, life_ms: int) -> str:
        return f"{await self._conn.now_ms(keys.members) + life_ms} {body}"

    async def stay(self, keys: Keys, name: str, process: ProcessInfo) -> None:
        """Renew the lifetime of a process."""
        # The revision stays: every joining process would have to start again.
        row = await self._row(keys, process.model_dump_json(), self.life_ms)
        await self._conn.keep(["HSET", keys.members, f"p:{name}", row])

    async def leave(self, keys: Keys, name: str) -> None:
        """Remove a process."""
        await self._conn.command("HDEL", keys.members, f"p:{name}")

    async def refuse(self, keys: Keys, who: str, sentence: str) -> None:
        """Record for a while that a process was refused, with the reason."""
        row = await self._row(keys, sentence, REFUSAL_MS)
        await self._conn.keep(["HSET", keys.members, f"r:{who}", row])

    async def keep(self, keys: Keys, kept: tuple[AgentCheckpoints, ...]) -> None:
        """Register the place of agents' threads."""
        for one in kept:
            await self._conn.command(
                "HSET", keys.members, one.field, one.model_dump_json()
            )

    async def waiting(self, keys: Keys, agent: str) -> int:
        """Return the number of an agent's pending calls."""
        # May include calls that have just expired, which is acceptable for display.
        return number(await self._conn.command("ZCARD", keys.waiting(agent)))
