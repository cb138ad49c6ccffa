"""Register the processes of a tenant, with the configuration that they must share.

One hash holds it all: ``p:`` a process, with the time until which it counts as alive;
``r:`` why one was refused, for those who look; ``a:`` where the threads of an agent are
kept, for ever. A process joins only if nobody joined since it compared itself with the
others, so two that do not fit together never both join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import (
    Connection,
    fields,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.listed_members import readable_fields
from keyturn.gateway.store.script import Script

LIFE_MS = 20_000
"""How long a process counts as alive after its last sign of life."""

REFUSAL_MS = 10 * 60 * 1000
"""How long it is told that a process was refused."""

JOIN = Script("join")


class ProcessInfo(Record, extra="ignore"):
    """What one process says of itself; versions compare what both of them know.

    Attributes:
        role: ``gateway`` or ``bot``.
        where: host and process id, for people.
        tenant: whose approvals it works on.
        agents: whose threads it advances, all of them or some.
        serves: those of them of which it advances every thread.
        checkpoints: id of the database that keeps their threads; "" for a bot.
        file: which file of which machine that is; "" when it is not a file.
        shown: the same for people.
        seals: id of the key with which it seals buttons; "" for a gateway.
        accepts: ids of all keys whose seals it accepts.
        ahead_s: by how much its machine's clock is ahead of the store's; 0 where it is
            right, as far as people can see.
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
    """Where the threads of an agent are kept; "" when a program decides for each."""

    tenant: str
    agent: str
    checkpoints: str = ""
    shown: str = ""

    @property
    def field(self) -> str:
        """Return the field of the hash."""
        return f"a:{json.dumps([self.tenant, self.agent])}"


@dataclass(frozen=True)
class Processes:
    """What is registered, at one moment.

    Attributes:
        revision: changes whenever a process joins.
        alive: name to process, and until when it counts (milliseconds, store's clock).
        kept: tenant and agent to where the threads are.
        refused: sentences about processes that were refused lately.
    """

    revision: str
    alive: Mapping[str, tuple[ProcessInfo, int]]
    kept: Mapping[tuple[str, str], AgentCheckpoints]
    refused: tuple[str, ...]


class ProcessStore:
    """The processes of each tenant."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.life_ms = LIFE_MS

    async def read(self, keys: Keys) -> Processes:
        """Return what is registered; raises `StoreUnavailable`."""
        clock = self._conn.clock
        asked_s = clock.asking()
        raw, time = await self._conn.transaction(["HGETALL", keys.members], ["TIME"])
        now_ms = milliseconds(time)
        clock.answered(now_ms / 1000, asked_s)
        alive: dict[str, tuple[ProcessInfo, int]] = {}
        kept: dict[tuple[str, str], AgentCheckpoints] = {}
        refused: list[str] = []
        found = fields(raw)

        def read(name: str, value: bytes) -> None:
            kind, _, rest = name.partition(":")
            ends, _, body = text(value).partition(" ")
            if kind == "a":
                one = AgentCheckpoints.model_validate_json(value)
                kept[one.tenant, one.agent] = one
            # Rows that have ended are removed by the next process that writes; until
            # then they are passed over here.
            elif kind == "p" and int(ends) >= now_ms:
                alive[rest] = (ProcessInfo.model_validate_json(body), int(ends))
            elif kind == "r" and int(ends) >= now_ms:
                refused.append(body)

        readable_fields(found, read)
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
        """Register a process; False when another joined since ``seen`` was read."""
        reply = await JOIN(
            self._conn,
            members=keys.members,
            seen=seen,
            name=f"p:{name}",
            body=process.model_dump_json(),
            life_ms=self.life_ms,
            agents=json.dumps({one.field: one.model_dump_json() for one in kept}),
        )
        return text(reply[0]) == "joined"

    async def stay(self, keys: Keys, name: str, process: ProcessInfo) -> None:
        """Let a process count as alive from now on."""
        await self.join(keys, name, process, seen="")

    async def leave(self, keys: Keys, name: str) -> None:
        """Forget a process."""
        await self._conn.command("HDEL", keys.members, f"p:{name}")

    async def refuse(self, keys: Keys, who: str, sentence: str) -> None:
        """Remember for a while that a process was refused, and why."""
        await JOIN(
            self._conn,
            members=keys.members,
            seen="",
            name=f"r:{who}",
            body=sentence,
            life_ms=REFUSAL_MS,
            agents="{}",
        )

    async def keep(self, keys: Keys, kept: tuple[AgentCheckpoints, ...]) -> None:
        """Register where agents keep their threads from now on."""
        for one in kept:
            await self._conn.command(
                "HSET", keys.members, one.field, one.model_dump_json()
            )

    async def waiting(self, keys: Keys, agent: str) -> int:
        """Return how many calls of an agent wait for people."""
        # It may count calls that have just expired, which is good enough for a
        # sentence.
        return number(await self._conn.command("ZCARD", keys.waiting(agent)))
