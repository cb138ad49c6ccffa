"""Load a whole system in every way for a while, and fail when something grows.

``python -m bench.mixed_load --minutes 60`` starts two gateways and two bots as
processes, on a store and a Postgres of their own, beside the sandbox. People ask,
click, edit and reject; a part of the calls is left to expire; tools are frozen and
unfrozen; gateways and bots are stopped or killed and started again. Every thirty
seconds it notes the store's memory, its keys by kind, and the memory of each process.
It ends with 1 when one of them leaves the band of the first quarter, and with 2 when
none does but the run was too short for some: a kind of key is judged by the samples
from after its lifetime. A quarter of an hour is enough.

What has ended is kept for a month, in which everything would grow. So this shortens a
month to a minute, from outside: what has a lifetime of ten minutes or more gets one of
a minute, and the audit log keeps a minute.
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from bench.growth import Sample, judge, kind_of
from bench.progress import progress
from tests.chaos import stack
from tests.chaos.people import REVIEWERS, TEAM, People
from tests.lifetimes import listed
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Click,
    Edit,
    Gesture,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import TwokeyError
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.connection import Argument, Connection, text
from twokey.gateway.store.durability import server_info
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.sandbox.client import UserActionFailed

_LONG_MS = 10 * 60 * 1000
"""Shorter lifetimes are those of leases and waits, which stay as they are."""

_EXPIRES = "45s"
_ASK_S, _CLICK_S, _EDIT_S, _FREEZE_S, _RESTART_S = 1.0, 0.5, 5.0, 20.0, 30.0
_FROZEN_S = 3.0
_LEFT_PERCENT = 15
"""How many of a hundred approvals nobody decides, so that they expire."""


@dataclass(frozen=True)
class Plan:
    """How much load.

    Attributes:
        seconds: for how long it is sampled, once the system is steady.
        sample_s: how long between two samples.
        kept_s: how long is kept here what the product keeps for a month.
        seed: of all dice.
    """

    seconds: float
    sample_s: float = 30.0
    kept_s: int = 60
    seed: int = 0


@dataclass
class Load:
    """Everything that happens to the system, each in a loop of its own.

    Attributes:
        done: how often each thing was done.
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
        """Approve or reject what waits, but for a part that is left to expire."""
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
        name = self.dice.choice(sorted(self.everything.members))
        how = self.dice.choice((signal.SIGTERM, signal.SIGKILL))
        await self.everything.members[name].end(how)
        self.done[f"{how.name} of a {name.partition('-')[0]}"] += 1

    async def age(self) -> None:
        """Let what is kept for long end soon."""
        conn = self.everything.store.conn
        names = await _lifetimes(conn)
        old: list[list[Argument]] = [
            ["PEXPIRE", name, self.kept_s * 1000]
            for name, left_ms in names
            if left_ms >= _LONG_MS
        ]
        for at in range(0, len(old), 500):
            await conn.transaction(*old[at : at + 500])
        kept_ms = await conn.now_ms() - self.kept_s * 1000
        for name, _ in names:
            if name.endswith(":au"):
                await conn.command("XTRIM", name, "MINID", kept_ms)

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
        with suppress(TwokeyError):
            await service.decide(click, edit, reviewer)
            return True
        return False


async def run(plan: Plan, folder: Path) -> tuple[list[Sample], Counter[str]]:
    """Load a system in a folder; return the samples and what was done."""
    dice = random.Random(plan.seed)  # noqa: S311 - no secret
    samples: list[Sample] = []
    async with stack.running(folder) as everything:
        everything.set_policy(_EXPIRES)
        load = Load(everything, People(everything, dice), dice, plan.kept_s)
        loops = [
            asyncio.create_task(_repeat(do, pause_s, dice))
            for do, pause_s in (
                (load.ask, _ASK_S),
                (load.click, _CLICK_S),
                (load.edit, _EDIT_S),
                (load.freeze, _FREEZE_S),
                (load.restart, _RESTART_S),
                (load.age, plan.kept_s / 6),
            )
        ]
        try:
            # What is kept has to have ended once before anything can be steady.
            began = time.monotonic()
            await asyncio.sleep(2 * plan.kept_s)
            ends = time.monotonic() + plan.seconds
            while time.monotonic() < ends:
                await asyncio.sleep(plan.sample_s)
                at_s = time.monotonic() - began
                samples.append(await sample(everything, at_s, plan.kept_s))
                _tell(samples[-1], load.done)
                _raise_errors(loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
    return samples, load.done


async def sample(everything: stack.Stack, at_s: float, kept_s: int) -> Sample:
    """Return memory of store and processes in kB, and how many keys of each kind."""
    conn = everything.store.conn
    used = int((await server_info(conn))["used_memory"])
    found = Counter({"memory of the store, kB": used // 1024})
    left_s: dict[str, float] = {}
    for key, left_ms in await _lifetimes(conn):
        name = f"keys {kind_of(key)}"
        found[name] += 1
        # What lives for long is about to be aged; who missed that has less than long.
        ends_s = kept_s if left_ms >= _LONG_MS else max(left_ms, 0) / 1000
        left_s[name] = max(left_s.get(name, 0.0), ends_s)
    for name, member in everything.members.items():
        if member.process is not None and member.process.pid is not None:
            found[f"memory of {name}, kB"] = _resident_kb(member.process.pid)
    return Sample(at_s, dict(found), left_s)


async def _lifetimes(conn: Connection) -> list[tuple[str, int]]:
    """Return each key and how many milliseconds it has left; below 0 for no end."""
    names = [text(name) for name in listed(await conn.command("KEYS", "*"))]
    rows: list[tuple[str, int]] = []
    for at in range(0, len(names), 500):
        part = names[at : at + 500]
        left = await conn.transaction(*(["PTTL", name] for name in part))
        rows += zip(part, cast("list[int]", left), strict=True)
    return rows


def _resident_kb(pid: int) -> int:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0  # it is being started again


async def _repeat(
    do: Callable[[], Awaitable[None]], pause_s: float, dice: random.Random
) -> None:
    while True:
        # A bot or a gateway may be away at any moment; that is part of the load.
        with suppress(TwokeyError, UserActionFailed, TimeoutError):
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
    parser = argparse.ArgumentParser(prog="python -m bench.mixed_load")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sample-seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    plan = Plan(given.minutes * 60, given.sample_seconds, seed=given.seed)
    with TemporaryDirectory(prefix="tk-mixed-") as folder:
        samples, done = asyncio.run(run(plan, Path(folder)))
    for name in sorted({name for one in samples for name in one.found}):
        row = [one.found.get(name, 0.0) for one in samples]
        print(f"{name}: {row[0]:,.0f} first, {max(row):,.0f} most, {row[-1]:,.0f} last")
    print(f"done: {dict(done)}")
    judgement = judge(samples)
    for line in judgement.grown:
        print(f"GROWS: {line}", file=sys.stderr)
    for line in judgement.too_short:
        print(f"NOT JUDGED: {line}", file=sys.stderr)
    if judgement.grown:
        return 1
    return 2 if judgement.too_short or not samples else 0


if __name__ == "__main__":
    sys.exit(main())
