"""Register a process with a heartbeat; refuse one whose settings contradict another's.

Two gateways of one agent have to use one database for its threads, because either may
take a job and only the database has the thread. Two bots have to know each other's
keys, because a click reaches either. The reason of a refusal is a sentence that other
processes show.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.clock import offset_sentence
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.failures import log_failure
from keyturn.gateway.store.connection.connection import refuses
from keyturn.gateway.store.connection.usable import in_time, until_usable
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.processes import (
    AgentCheckpoints,
    Processes,
    ProcessInfo,
)
from keyturn.gateway.store.sealing.sealing import SEALED_OTHERWISE, knows_secret
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

BEAT_S = 5.0
"""Seconds between heartbeats; a quarter of a registration's lifetime."""
_LOOK_S = 0.2

NO_WRITES = (
    "The store answers but takes no writes, so nothing is decided or run; "
    "'keyturn doctor' says why."
)


def process_name() -> str:
    """Return host and process id, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Registration:
    """The registration of this process among the others of its store.

    It also compares the clock of this machine with the store's, and the accepted
    secrets with the one that seals the store.

    Attributes:
        problem: why the process no longer fits; "" while it fits. This happens if the
            process was paused and a contradicting one joined.
        is_refused: True if the store answers but rejected the last heartbeat.
    """

    def __init__(self, store: Store, keys: Keys, process: ProcessInfo) -> None:
        self._store, self._keys, self._process = store, keys, process
        self._name = secrets.token_hex(8)
        self.problem = ""
        self._is_secret_known = True
        self.is_refused = False

    async def enter(self) -> None:
        """Join; wait only until a contradicting process proves alive or expires.

        Raises:
            SettingsError: when this process does not fit; the text has the remedy.
        """
        seen: dict[str, int] = {}
        while True:
            found = await self._store.processes.read(self._keys)
            name, problem = self._mismatch(found)
            problem = problem or await self._lost_database(found)
            if not problem:
                # False if another process joined since the reading. Two that do not fit
                # must not both join, so both read again.
                if await self._store.processes.join(
                    self._keys,
                    self._name,
                    self._process,
                    seen=found.revision,
                    kept=tuple(kept_by(self._process)),
                ):
                    return
                continue
            ends = found.alive[name][1] if name else 0
            # A killed process counts as alive for some more seconds. So only a second
            # heartbeat of the other process refuses this one.
            if not name or seen.setdefault(name, ends) != ends:
                role = self._process.role
                who = f"{role}@{socket.gethostname()}"
                sentence = f"The {role} {self._process.where} was refused: {problem}"
                await self._store.processes.refuse(self._keys, who, sentence)
                raise SettingsError(problem)
            await asyncio.sleep(_LOOK_S)

    async def stay(self) -> None:
        """Send heartbeats forever, and check that this process still fits."""
        while True:
            # In proportion to the lifetime, which tests shorten.
            await asyncio.sleep(BEAT_S * self._store.processes.life_ms / 20_000)
            with suppress(StoreUnavailable):
                await self._beat()
                await self._look()
                await self._compare_clocks()
                await self._compare_secret()

    async def _beat(self) -> None:
        """Send a heartbeat, which also tests whether the store accepts writes.

        A store with a full disk or memory, or a new replica, still answers reads.
        """
        try:
            await self._store.processes.stay(self._keys, self._name, self._process)
        except StoreUnavailable as error:
            self.is_refused = refuses(error)
            raise
        self.is_refused = False

    async def _look(self) -> None:
        """Check that this process still fits; a corrupt row changes nothing."""
        try:
            found = await self._store.processes.read(self._keys)
        except ValueError as error:
            log_failure(logger, error, "process.corrupt")
            return
        # A lost database is detected when a process starts.
        _, problem = self._mismatch(found)
        if problem and problem != self.problem:
            logger.error("process.does_not_fit why=%s", problem)
        self.problem = problem

    @property
    def problems(self) -> list[str]:
        """Return the problems of this process for its operator."""
        secret = "" if self._is_secret_known else SEALED_OTHERWISE
        kept = NO_WRITES if self.is_refused else ""
        found = (self.problem, clock_problem(self._store), secret, kept)
        return [one for one in found if one]

    async def ready(self) -> list[str]:
        """Return what stops this process from working; empty if it is ready."""
        conn = self._store.conn
        asked_s = conn.clock.asking()
        try:
            async with in_time():
                now_ms = await conn.now_ms(self._keys.outbox)
        except StoreUnavailable as error:
            return [str(error)]
        conn.clock.answered(now_ms / 1000, asked_s)
        return self.problems

    async def _compare_clocks(self) -> None:
        """Publish the clock's offset with the next beat, and report a wrong clock."""
        ahead_s = round(self._store.conn.clock.offset_s)
        before_s, mine = self._process.ahead_s, self._process
        # Not for each second of drift, because the offset becomes a sentence elsewhere.
        if abs(ahead_s - before_s) <= 1 and bool(ahead_s) == bool(before_s):
            return
        self._process = mine.with_(ahead_s=ahead_s)
        if ahead_s:
            logger.error("process.clock_wrong ahead_s=%+d", ahead_s)
            side = "ahead" if ahead_s > 0 else "behind"
            await self._report(SecurityKind.CLOCK_WRONG, "clock", evidence=side)

    async def _compare_secret(self) -> None:
        """Report it when the store is marked with a secret that is not accepted here.

        The secret was replaced, or an intruder writes to the store. The report comes
        before any of their other data is read.
        """
        was_known = self._is_secret_known
        self._is_secret_known = await knows_secret(self._store.conn, self._keys)
        if self._is_secret_known or not was_known:
            return
        logger.error("process.secret_unknown")
        await self._report(SecurityKind.SECRET_UNKNOWN, "secret")

    async def _report(self, kind: SecurityKind, about: str, evidence: str = "") -> None:
        mine = self._process
        found = SecurityEvent(
            kind=kind,
            tenant=mine.tenant,
            about=about,
            name=f"{mine.role} {mine.where}",
            evidence=evidence,
        )
        await self._store.security.report(self._keys, found)

    async def leave(self) -> None:
        """Leave; if the store does not answer, the registration expires."""
        with suppress(StoreUnavailable):
            await self._store.processes.leave(self._keys, self._name)

    def add_agent(self, agent: str) -> None:
        """Add an agent whose threads this process runs."""
        if agent not in self._process.agents:
            agents = (*self._process.agents, agent)
            self._process = self._process.with_(agents=agents)

    def _mismatch(self, found: Processes) -> tuple[str, str]:
        """Return another process that this one contradicts, and why; or empty texts."""
        mine = self._process
        for name, (other, _) in found.alive.items():
            if name == self._name or other.tenant != mine.tenant:
                continue
            problem = _two_keys(mine, other) or _copied(mine, other)
            if problem := problem or _two_databases(mine, other):
                return name, problem
        return "", ""

    async def _lost_database(self, found: Processes) -> str:
        """Return why threads with waiting calls are missing here; "" if none is."""
        mine = self._process
        for agent in mine.serves:
            before = found.kept.get((mine.tenant, agent))
            if before is None or before.checkpoints in {"", mine.checkpoints}:
                continue
            if waiting := await self._store.processes.waiting(self._keys, agent):
                return (
                    f"{_wait(waiting, repr(agent))}, and "
                    f"its threads are in {before.shown}, not in {mine.shown}; set "
                    "'checkpoints' to the former or restore it. If it is lost for "
                    "good, run: keyturn repair --new-checkpoints"
                )
        return ""


@asynccontextmanager
async def registered(
    store: Store, process: ProcessInfo
) -> AsyncGenerator[Registration]:
    """Register a process of a tenant while the block runs.

    The entry waits for a store that is away, as at its opening.

    Raises:
        SettingsError: when it does not fit the others; the text has the remedy.
        StoreUnavailable: when the store does not answer in time.
    """
    keys = store.keys_of_tenant(process.tenant)
    registration = Registration(store, keys, process)
    await until_usable(registration.enter, store.conn.url)
    beating = asyncio.create_task(registration.stay())
    try:
        looked = partial(unserved, store, keys)
        for problem in await until_usable(looked, store.conn.url):
            logger.warning("agent.unserved why=%s", problem)
        yield registration
    finally:
        beating.cancel()
        # Before it leaves: a later heartbeat would register it again.
        await asyncio.gather(beating, return_exceptions=True)
        await registration.leave()


def kept_by(process: ProcessInfo) -> list[AgentCheckpoints]:
    """Return the checkpoint databases of a gateway's agents."""
    return [
        AgentCheckpoints(
            tenant=process.tenant,
            agent=agent,
            checkpoints=process.checkpoints,
            shown=process.shown,
        )
        for agent in process.serves
    ]


async def process_problems(store: Store, keys: Keys) -> list[str]:
    """Return the problems of processes: refused, missing, or with a wrong clock."""
    found = await store.processes.read(keys)
    clocks = sorted(
        offset_sentence(f"the {one.role} {one.where}", one.ahead_s, "the store's")
        for one, _ in found.alive.values()
        if one.ahead_s
    )
    return [*found.refused, *clocks, *await unserved(store, keys)]


def clock_problem(store: Store) -> str:
    """Return a sentence about this machine's clock if it is off from the store's."""
    ahead_s = store.conn.clock.offset_s
    return offset_sentence("this machine", ahead_s, "the store's") if ahead_s else ""


async def unserved(store: Store, keys: Keys) -> list[str]:
    """Return a sentence for each agent with waiting calls and without a process."""
    found = await store.processes.read(keys)
    served = {
        (process.tenant, agent)
        for process, _ in found.alive.values()
        for agent in (*process.agents, *process.serves)
    }
    sentences: list[str] = []
    for tenant, agent in sorted(found.kept.keys() - served):
        count = await store.processes.waiting(keys, agent)
        if count:
            sentences.append(
                f"{_wait(count, f'{agent!r} of tenant {tenant!r}')} and "
                "no process serves the agent, so nothing that is approved runs; start "
                f"a gateway with 'agents: {{{agent}: ...}}', or reject the cards."
            )
    return sentences


def _two_keys(mine: ProcessInfo, other: ProcessInfo) -> str:
    if not (mine.seals and other.seals):
        return ""
    # In both directions: each has to accept the buttons of the other.
    if other.seals in mine.accepts and mine.seals in other.accepts:
        return ""
    return (
        f"The bot {other.where} seals buttons with the key {other.seals}, and this one "
        f"with {mine.seals}, so each would refuse the clicks on the other's cards; "
        "give both the same KEYTURN_SECRET, or the same 'data_dir'."
    )


def _copied(mine: ProcessInfo, other: ProcessInfo) -> str:
    is_copy = mine.checkpoints == other.checkpoints and mine.file != other.file
    if not (mine.checkpoints and is_copy):
        return ""
    return (
        f"The checkpoints {mine.shown} are a copy of {other.shown}, which the gateway "
        f"{other.where} uses now, and threads would go on twice; stop that one, or "
        "keep threads in one Postgres ('checkpoints: postgresql://...')."
    )


def _two_databases(mine: ProcessInfo, other: ProcessInfo) -> str:
    both = sorted({*mine.serves} & {*other.serves})
    if not both or mine.checkpoints == other.checkpoints:
        return ""
    return (
        f"The gateway {other.where} keeps the threads of agent {both[0]!r} in "
        f"{other.shown}, and this one would in {mine.shown}, so each would lack half "
        "of them; give both the same 'checkpoints', such as one Postgres, or the same "
        "'data_dir' on one machine."
    )


def _wait(count: int, agent: str) -> str:
    if count == 1:
        return f"1 call of agent {agent} waits for people"
    return f"{count} calls of agent {agent} wait for people"
