"""A worker in a separate process that dies at one place, a few times.

``python -m tests.connect.temporal.worker_process TARGET URL KEY QUEUE FOLDER PLACE N``
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker
from typing_extensions import override

from keyturn.connect.gate import HttpGate
from keyturn.connect.temporal import gated
from keyturn.connect.temporal.plugin import KeyturnPlugin
from keyturn.gateway.protocol import http_api, wire
from keyturn.gateway.protocol.records import Result
from tests.connect.temporal.flows import CURRENT

PLACES = [
    f"{when} {step}"
    for step in ("effect", "submit", "answers", "claim", "finish")
    for when in ("after", "before")
]


class Deaths:
    """Ends the process where it should die, unless it died there often enough."""

    def __init__(self, folder: Path, place: str, times: int) -> None:
        self._file, self._place, self._times = folder / "deaths", place, times

    def at(self, place: str) -> None:
        """Pass a place."""
        died = self._file.read_text("utf-8") if self._file.exists() else ""
        if place == self._place and len(died) < self._times:
            self._file.write_text(f"{died}x", encoding="utf-8")
            os._exit(9)


class DyingGate(HttpGate):
    """A gate whose process dies before or after one kind of request."""

    deaths: Deaths

    @override
    async def submit(self, turn: wire.Turn) -> tuple[wire.Verdict, ...]:
        self.deaths.at("before submit")
        found = await super().submit(turn)
        self.deaths.at("after submit")
        return found

    @override
    async def answers(
        self, question: http_api.AnswersQuestion
    ) -> tuple[http_api.Answered, ...]:
        self.deaths.at("before answers")
        found = await super().answers(question)
        self.deaths.at("after answers")
        return found

    @override
    async def claim(self, request: wire.ClaimRequest) -> wire.ClaimReply:
        self.deaths.at("before claim")
        found = await super().claim(request)
        self.deaths.at("after claim")
        return found

    @override
    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        self.deaths.at("before finish")
        found = await super().finish(item_id, fence, result)
        self.deaths.at("after finish")
        return found


async def main(
    target: str, url: str, key: str, queue: str, folder: str, place: str, times: str
) -> None:
    """Run the worker until it dies."""
    gated.HEARTBEAT = gated.ANSWER_WITHIN = timedelta(seconds=1)
    deaths = Deaths(Path(folder), place, int(times))
    gate = DyingGate(url, key)
    gate.deaths = deaths

    def process_refund(amount: float) -> str:
        deaths.at("before effect")
        with (Path(folder) / "paid").open("a", encoding="utf-8") as file:
            file.write(f"{amount}\n")
        deaths.at("after effect")
        return f"paid {amount}"

    plugin: Any = KeyturnPlugin(process_refund, gateway=gate)
    client = await Client.connect(target)
    async with Worker(
        client,
        task_queue=queue,
        plugins=[plugin],
        workflows=CURRENT,
        # Temporal would wait ten seconds for a worker that has a workflow in memory.
        max_cached_workflows=0,
    ):
        await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
