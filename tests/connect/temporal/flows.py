"""Workflows of the tests; those in `CURRENT` also have recorded histories."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

from keyturn.connect.temporal import Carry, Gated, Outcome

TOOL = "process_refund"


@workflow.defn
class Refund(Gated, agent="support"):
    """Makes one call."""

    @workflow.run
    async def run(self, tool: str, args: dict[str, Any], key: str = "") -> Outcome:
        return await self.gated(tool, args, key=key)


@workflow.defn
class Refunds(Gated, agent="support"):
    """Makes several calls at once."""

    @workflow.run
    async def run(self, amounts: list[float]) -> list[Outcome]:
        calls = (self.gated(TOOL, {"amount": amount}) for amount in amounts)
        return list(await asyncio.gather(*calls))


@workflow.defn
class SameKey(Gated, agent="support"):
    """Makes two calls with one key, one after the other."""

    @workflow.run
    async def run(self, first: float, second: float) -> list[Outcome]:
        calls = [{"amount": amount} for amount in (first, second)]
        return [await self.gated(TOOL, args, key="order 7") for args in calls]


@workflow.defn
class Eager(Gated, agent="support", poll=timedelta(milliseconds=100)):
    """Asks the gateway by itself, often."""

    @workflow.run
    async def run(self, amount: float) -> Outcome:
        return await self.gated(TOOL, {"amount": amount})


@workflow.defn
class Hasty(Gated, agent="support"):
    """Gives each attempt one second."""

    @workflow.run
    async def run(self, amount: float) -> Outcome:
        within = timedelta(seconds=1)
        return await self.gated(TOOL, {"amount": amount}, start_to_close_timeout=within)


@workflow.defn
class Renewed(Gated, agent="support"):
    """Continues as new at each signal."""

    def __init__(self) -> None:
        self.renew = False

    @workflow.run
    async def run(self, amounts: list[float], carry: Carry | None = None) -> list[str]:
        self.continue_from(carry)
        made = [
            asyncio.create_task(self.gated(TOOL, {"amount": amount}))
            for amount in amounts
        ]
        await workflow.wait_condition(
            lambda: self.renew or all(call.done() for call in made)
        )
        if self.renew:
            workflow.continue_as_new(args=[amounts, self.carry()])
        return [call.result().text for call in made]

    @workflow.signal
    def again(self) -> None:
        """Continue as new."""
        self.renew = True


@workflow.defn
class Proposals(Gated, agent="adapter"):
    """Makes calls at once, maybe under the names of an earlier workflow."""

    @workflow.run
    async def run(
        self, calls: list[tuple[str, dict[str, Any]]], carry: Carry | None = None
    ) -> list[str]:
        self.continue_from(carry)
        made = (self.gated(tool, args) for tool, args in calls)
        return [outcome.text for outcome in await asyncio.gather(*made)]


CURRENT = (Refund, Refunds, SameKey, Eager, Hasty, Renewed)
