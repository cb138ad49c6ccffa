"""Load a whole system in every way for a while, and fail when something grows.

``python -m tests.soak.mixed_load --minutes 60`` starts two gateways and two bots as
processes, on a separate store and Postgres, next to the sandbox. People ask, click,
edit and reject; a part of the calls expires; tools are frozen and unfrozen; one gateway
and one bot are stopped or killed and restarted, and the other two run on from the first
minute to the last, so that their memory can be judged.

Every thirty seconds it records, of the store: its memory, its connections, and for each
kind of key the number of keys, their contents (members, fields, entries; the readers of
a stream, and their unacknowledged entries) and their memory; of each process that runs
on: its memory and its open files. It ends with 1 when one of them certainly rises
(`growth.judge`), and with 2 when none does but the run was too short for some: a kind
of key is judged by the samples from after its lifetime, the memory of processes by
those from after the first quarter of the run, in which their caches fill. A quarter of
an hour is enough for all keys but the outbox, which is still filling then.

Ended records are kept for a month, in which everything would grow. No setting shortens
that, so this does, from outside: keys with a lifetime of ten minutes or more get one of
a minute, and messages due for redaction are checked a minute after that. The audit log
is kept for a minute, by its setting.

An hour does not show: that a lifetime of 30 days really ends after 30 days (tests
compare each key's lifetime with its need, `tests.lifetimes`); members of permanent keys
that are dropped only after days, such as absent processes and readers; and the database
of checkpoints, which is never pruned.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from bench import progress
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Click,
    Edit,
    Gesture,
    Reviewer,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.people.freezing import FreezeService
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.connection.durability import server_info
from keyturn.gateway.store.keys import LEASE_MS
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import UserActionFailed
from tests.chaos import stack
from tests.chaos.people import REVIEWERS, TEAM, People
from tests.soak.growth import Judgement, Sample, judge, kind_of
from tests.soak.held import contents, lifetimes, open_files, resident_kb

_TO_REDACT = "messages_due"
"""The kind of key with what is looked at only a month after it was posted."""

_LONG_MS = 10 * 60 * 1000
"""Shorter lifetimes are those of leases and waits, which stay as they are."""

_EXPIRES = "45s"
ASK_S = 8.0
"""How long between two messages to the agent.

One makes four to five posts in the channel and a freeze two, about 37 a minute. With a
message every five seconds it is more than the 42 that a bot sends (`bot.limits`), and
ever more events of replies wait unacknowledged.
"""
_CLICK_S, _EDIT_S, _FREEZE_S, _RESTART_S = 0.5, 15.0, 20.0, 30.0
_FROZEN_S = 3.0
RESTARTED = ("bot-2", "gateway-2")
"""The others run on: memory that grows slowly is seen in a process that lives long."""

_LEFT_PERCENT = 15
"""How many of a hundred approvals nobody decides, so that they expire."""


@dataclass(frozen=True)
class Plan:
    """How much load.

    Attributes:
        seconds: for how long it is sampled, once the system is steady.
        sample_s: how long between two samples.
        kept_s: how long is kept here what the product keeps for a month.
        ask_s: how long between two messages to the agent.
        seed: of all dice.
    """

    seconds: float
    sample_s: float = 30.0
    kept_s: int = 60
    ask_s: float = ASK_S
    seed: int = 0


@dataclass
class Load:
    """All activities in the system, each in a separate loop.

    Attributes:
        done: count of each activity.
    """

    everything: stack.Stack
    people: People
    dice: random.Random
    kept_s: int
    done: Counter[str] = field(default_factory=Counter[str])

    async def ask(self) -> None:
        """Ask the agent for some calls."""
        await self.people.ask()
        self.done["messages"] += 1

    async def click(self) -> None:
        """Approve or reject pending calls, except for a part that expires."""
        for card in await self.people.cards():
            if zlib.crc32(str(card["ts"]).encode()) % 100 < _LEFT_PERCENT:
                continue
            await self.people.press(card)
            self.done["clicks"] += 1

    async def edit(self) -> None:
        """Approve a call with another argument."""
        for approval in await self.people.approvals():
            (item, *others) = approval.items
            if others or item.state is not ItemState.PENDING:
                continue
            if await self._edited(approval):
                self.done["edits"] += 1
            return

    async def freeze(self) -> None:
        """Freeze a tool for a moment."""
        freezes = FreezeService(self.everything.store, tenant="default")
        scope = FreezeScope(kind=ScopeKind.TOOL, name="email")
        await freezes.freeze(scope, "bench", "a drill", gesture=Gesture.CLI)
        await asyncio.sleep(_FROZEN_S)
        await freezes.unfreeze(scope, "bench", "", gesture=Gesture.CLI)
        self.done["freezes"] += 1

    async def restart(self) -> None:
        """Stop or kill a gateway or a bot; it starts again."""
        name = self.dice.choice(RESTARTED)
        how = self.dice.choice((signal.SIGTERM, signal.SIGKILL))
        await self.everything.members[name].end(how)
        self.done[f"{how.name} of a {name.partition('-')[0]}"] += 1

    async def age(self) -> None:
        """Shorten long lifetimes."""
        conn = self.everything.store.conn
        names = await lifetimes(conn)
        old: list[list[Argument]] = [
            ["PEXPIRE", name, self.kept_s * 1000]
            for name, left_ms in names
            if left_ms >= _LONG_MS
        ]
        for at in range(0, len(old), 500):
            await conn.transaction(*old[at : at + 500])
        for name in [one for one, _ in names if kind_of(one) == _TO_REDACT]:
            await self._let_look(name)

    async def _let_look(self, due: str) -> None:
        """Make messages due soon, when their approvals are gone."""
        conn = self.everything.store.conn
        at_ms = await conn.now_ms(due) + 2 * self.kept_s * 1000
        found = await conn.command("ZRANGEBYSCORE", due, f"({at_ms}", "+inf")
        if late := cast("list[bytes]", found):
            pairs = [word for member in late for word in (at_ms, member)]
            await conn.command("ZADD", due, "XX", *pairs)

    async def _edited(self, approval: Approval) -> bool:
        policy = load_policy(self.everything.policy, "policy.yml")
        service = ReviewService(self.everything.store, lambda: policy)
        (item,) = approval.items
        click = Click(
            approval=approval.id,
            index=0,
            version=approval.version,
            action_hash=item.action_hash,
        )
        self.people.asked += 1
        edit = Edit(args={"order": f"o{self.people.asked}.0"}, reason="another order")
        who = self.dice.choice(REVIEWERS)
        reviewer = Reviewer(team=TEAM, user=who, name=who, account=AccountKind.MEMBER)
        with suppress(KeyturnError):
            await service.decide(click, edit, reviewer)
            return True
        return False


async def run(plan: Plan, folder: Path) -> tuple[list[Sample], Counter[str]]:
    """Load a system in a folder; return the samples and the counts."""
    dice = random.Random(plan.seed)  # noqa: S311 - no secret
    samples: list[Sample] = []
    kept = timedelta(seconds=plan.kept_s)
    # Leases of the product and not the short ones of the kills: a machine that is busy
    # with other things would lose them, and threads would go round between processes.
    async with stack.running(folder, audit_kept=kept, lease_ms=LEASE_MS) as everything:
        everything.set_policy(_EXPIRES)
        load = Load(everything, People(everything, dice), dice, plan.kept_s)
        loops = [
            asyncio.create_task(_repeat(do, pause_s, dice))
            for do, pause_s in (
                (load.ask, plan.ask_s),
                (load.click, _CLICK_S),
                (load.edit, _EDIT_S),
                (load.freeze, _FREEZE_S),
                (load.restart, _RESTART_S),
                (load.age, plan.kept_s / 6),
            )
        ]
        try:
            # Stored data has to expire once before anything can be steady.
            began = time.monotonic()
            await asyncio.sleep(2 * plan.kept_s)
            # A killed gateway may have had the first calls.
            while not (load.done["clicks"] and load.done["messages"]):
                await asyncio.sleep(_CLICK_S)
                _raise_errors(loops)
            ends = time.monotonic() + plan.seconds
            while time.monotonic() < ends:
                await asyncio.sleep(plan.sample_s)
                at_s = time.monotonic() - began
                samples.append(await sample(everything, at_s, plan))
                _tell(samples[-1], load.done)
                _raise_errors(loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
    return samples, load.done


async def sample(everything: stack.Stack, at_s: float, plan: Plan) -> Sample:
    """Return the contents of store and processes, by descriptive names."""
    conn = everything.store.conn
    info = await server_info(conn)
    found = Counter(
        {
            "memory of the store, kB": int(info["used_memory"]) // 1024,
            "connections of the store": int(info["connected_clients"]),
        }
    )
    left_s: dict[str, float] = {}
    names = await lifetimes(conn)
    for key, left_ms in names:
        name = f"keys {kind_of(key)}"
        found[name] += 1
        # What lives for long is about to be aged; who missed that has less than long.
        ends_s = plan.kept_s if left_ms >= _LONG_MS else max(left_ms, 0) / 1000
        left_s[name] = max(left_s.get(name, 0.0), ends_s)
    held = await contents(conn, [name for name, _ in names])
    found.update(held)
    left_s |= {
        name: left_s.get(f"keys {name.partition(' of ')[2]}", 0.0) for name in held
    }
    pids = {"the store itself": everything.engine.pid}
    for name, member in everything.members.items():
        if name not in RESTARTED and member.process is not None:
            pids[name] = member.process.pid
    for name, pid in pids.items():
        memory, files = f"memory of {name}, kB", f"open files of {name}"
        found[memory], found[files] = resident_kb(pid), open_files(pid)
        left_s[memory] = plan.seconds / 4
    return Sample(at_s, dict(found), left_s)


async def _repeat(
    do: Callable[[], Awaitable[None]], pause_s: float, dice: random.Random
) -> None:
    while True:
        # A bot or a gateway may be away at any moment; that is part of the load.
        with suppress(KeyturnError, UserActionFailed, TimeoutError):
            await do()
        await asyncio.sleep(dice.uniform(0.5, 1.5) * pause_s)


def _raise_errors(loops: list[asyncio.Task[None]]) -> None:
    for loop in loops:
        if loop.done():
            loop.result()


def _tell(seen: Sample, done: Counter[str]) -> None:
    store = seen.found["memory of the store, kB"]
    keys = sum(n for name, n in seen.found.items() if name.startswith("keys "))
    progress(f"store {store:,.0f} kB, {keys:,.0f} keys; {dict(done)}")


def main() -> int:
    """Read the arguments, run, and print what grew and what cannot be judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.mixed_load")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sample-seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    plan = Plan(given.minutes * 60, given.sample_seconds, seed=given.seed)
    with TemporaryDirectory(prefix="tk-mixed-") as folder:
        samples, done = asyncio.run(run(plan, Path(folder)))
    judgement = judge(samples)
    _print_rows(samples, judgement)
    print(f"done: {dict(done)}")
    for line in judgement.grown:
        print(f"GROWS: {line}", file=sys.stderr)
    for line in judgement.too_short:
        print(f"NOT JUDGED: {line}", file=sys.stderr)
    if judgement.grown:
        return 1
    return 2 if judgement.too_short or not samples else 0


def _print_rows(samples: list[Sample], judgement: Judgement) -> None:
    for name in sorted({name for one in samples for name in one.found}):
        row = [one.found.get(name, 0.0) for one in samples]
        slope = judgement.per_hour.get(name)
        an_hour = "not judged" if slope is None else f"{slope:+,.0f} an hour"
        print(
            f"{name}: {row[0]:,.0f} first, {max(row):,.0f} most, {row[-1]:,.0f} last, "
            f"{an_hour}"
        )


if __name__ == "__main__":
    sys.exit(main())
