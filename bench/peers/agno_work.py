"""The work of the benchmark on Agno; run by the Python of the peers' environment."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.tools import tool

_begun: list[float] = []


class Scripted(Model):
    """A model that takes no time: so many calls of one tool, one a turn."""

    uses: str = ""
    calls: int = 1

    def _reply(self, messages: list[Any]) -> ModelResponse:
        done = 0
        for message in messages:  # of this run: earlier ones end with a user's message
            done = 0 if message.role == "user" else done + (message.role == "tool")
        if done >= self.calls:
            return ModelResponse(role="assistant", content="Done.")
        call = {
            "id": f"call-{time.perf_counter_ns()}",
            "type": "function",
            "function": {"name": self.uses, "arguments": '{"order": "78291"}'},
        }
        return ModelResponse(role="assistant", tool_calls=[call])

    def invoke(self, messages: list[Any], **_: object) -> ModelResponse:
        """Answer at once."""
        return self._reply(messages)

    async def ainvoke(self, messages: list[Any], **_: object) -> ModelResponse:
        """Answer at once."""
        return self._reply(messages)

    def invoke_stream(self, *_: object, **__: object) -> Iterator[ModelResponse]:
        """Is asked by nobody here; the base class wants it."""
        raise NotImplementedError

    def ainvoke_stream(self, *_: object, **__: object) -> AsyncIterator[ModelResponse]:
        """Is asked by nobody here; the base class wants it."""
        raise NotImplementedError

    def _parse_provider_response(
        self, response: ModelResponse, **_: object
    ) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: ModelResponse) -> ModelResponse:
        return response


@tool
async def look_up(order: str) -> str:
    """Look up an order."""
    return f"{order} is a desk"


@tool(requires_confirmation=True)
async def refund(order: str) -> str:
    """Refund an order."""
    _begun.append(time.perf_counter())
    return f"refunded {order}"


async def main(count: int) -> dict[str, list[float]]:
    """Return milliseconds: of an ungated call, and from a decision to its tool."""
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as folder:
        database = SqliteDb(db_file=str(Path(folder) / "agno.db"))

        def agent(uses: str, calls: int) -> Agent:
            model = Scripted(id="scripted")
            model.uses, model.calls = uses, calls
            return Agent(
                model=model, tools=[look_up, refund], db=database, telemetry=False
            )

        calls = 10
        plain, gated = agent("look_up", calls), agent("refund", 1)
        auto_ms: list[float] = []
        resume_ms: list[float] = []
        for number in range(count + 1):
            began = time.perf_counter()
            await plain.arun("look", session_id=f"auto-{number}")
            auto_ms.append((time.perf_counter() - began) * 1000 / calls)
            session = f"gated-{number}"
            paused = await gated.arun("refund", session_id=session)
            assert paused.is_paused, paused
            _begun.clear()
            began = time.perf_counter()
            for requirement in paused.active_requirements:
                requirement.confirm()
            await gated.acontinue_run(
                run_id=paused.run_id,
                session_id=session,
                requirements=paused.requirements,
            )
            resume_ms.append((_begun[0] - began) * 1000)
    # The first of each pays for what is made once a process.
    return {"auto_ms": auto_ms[1:], "resume_ms": resume_ms[1:]}


if __name__ == "__main__":
    json.dump(asyncio.run(main(int(sys.argv[1]))), sys.stdout)
