"""A worker in a separate process, until SIGTERM or a chosen death.

Usage: worker_process.py STORE_URL CHECKPOINTS LEASE_MS

``SHOP_DIE`` names the point where it kills itself: opened, second_question,
before_claim, claimed, inside, finished.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from langchain.agents.middleware.types import ToolCallRequest

from keyturn.agent.calls import Caller, Handler
from keyturn.agent.result_codec import ToolResult
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.claiming import ClaimService
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume.resume_stack import Stack, open_stack
from tests.resume.sample_tools import DIE, die_at
from tests.store_secrets import SECRETS

_claim, _finish = ClaimService.claim, ClaimService.finish
_submit = AgentService.submit
_wait_and_run = Caller._wait_and_run  # pyright: ignore[reportPrivateUsage] - where a call begins to ask


async def submit(self: AgentService, turn: Turn) -> tuple[Verdict, ...]:
    """Open a turn, and perhaps die before the thread knows its message."""
    verdicts = await _submit(self, turn)
    die_at("opened")
    return verdicts


async def claim(self: ClaimService, request: ClaimRequest) -> ClaimReply:
    """Claim, and perhaps die before or after."""
    die_at("before_claim")
    reply = await _claim(self, request)
    if isinstance(reply, Claimed):
        die_at("claimed")
    return reply


async def finish(
    self: ClaimService,
    item_id: str,
    fence: int,
    result: Result | None,
    *,
    has_begun: bool = True,
) -> bool:
    """Record a result, and perhaps die before the thread knows it."""
    is_ours = await _finish(self, item_id, fence, result, has_begun=has_begun)
    die_at("finished")
    return is_ours


def die_before_a_second_question(stack: Stack) -> None:
    """Kill this process once one call of the turn has asked, as an e-mail is to."""

    async def has_asked() -> bool:
        return len((await stack.runner.probe("t1")).pending) == 1

    async def held(
        self: Caller,
        request: ToolCallRequest,
        run: Handler,
        ref: TurnRef,
        verdict: Verdict,
    ) -> ToolResult:
        if verdict.tool == "email":
            await eventually(has_asked)
            die_at("second_question")
        return await _wait_and_run(self, request, run, ref, verdict)

    Caller._wait_and_run = held  # type: ignore[method-assign]  # the process is the test's own


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(url: str, checkpoints: str, lease_ms: int) -> None:
    """Work until SIGTERM."""
    AgentService.submit = submit  # type: ignore[method-assign]  # the process is the test's own
    ClaimService.claim = claim  # type: ignore[method-assign]  # as above
    ClaimService.finish = finish  # type: ignore[method-assign]  # as above
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = Store(url, secrets=SECRETS, lease_ms=lease_ms)
    async with open_stack(store, Path(checkpoints)) as stack, stack.working():
        if os.environ.get(DIE) == "second_question":
            die_before_a_second_question(stack)
        _say("ready")
        await stop.wait()
    await store.close()
    _say("stopped")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
