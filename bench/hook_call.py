"""Measure what the gateway adds to a call of a coding agent that needs no person.

The policy is the shipped one (`examples/coding_agents/policy.yml`), and the call is a
quiet shell command. The gateway and the client share this process.

- One HTTP request of Claude Code's hook, on a connection that stays open.
- One run of the command `keyturn hook codex`, which starts Python each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench import SECRETS
from bench.stats import Figure, Measured, NotMeasured, plain
from keyturn.connect.coding_agents import CLAUDE_CODE
from keyturn.connect.hooks import hook_routes
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.open_store import open_store
from tests.api.api_stack import serving
from tests.connect.coding_agents.conftest import Hooks
from tests.service.harness import ServiceHarness

_POLICY = Path(__file__).parent.parent / "examples" / "coding_agents" / "policy.yml"
_COMMAND = "git log --oneline | head -20"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: rounds, and requests and commands in a round."""

    rounds: int
    requests: int
    commands: int


FULL = Plan(rounds=6, requests=50, commands=5)
QUICK = Plan(rounds=2, requests=5, commands=1)


async def measure(*, is_quick: bool = False) -> Figure:
    """Measure both hooks."""
    plan = QUICK if is_quick else FULL
    rules = load_policy(_POLICY.read_text("utf-8"), _POLICY.name)
    with TemporaryDirectory(prefix="tk-bench-hook-") as folder:
        async with (
            open_store(None, Path(folder), secrets=SECRETS) as store,
            serving(people := ServiceHarness(store, rules)) as stack,
        ):
            stack.api.routes = hook_routes(store)(stack.api.tenant, stack.api.limits)
            hooks = Hooks(stack, people, stack.key(agents=["coder"]))
            async with stack.client(hooks.key) as client:
                await _request(hooks, client)
                rows = [
                    (
                        [await _request(hooks, client) for _ in range(plan.requests)],
                        [await _command(hooks) for _ in range(plan.commands)],
                    )
                    for _ in range(plan.rounds)
                ]
    request, command = (
        Measured(name, "ms", tuple(tuple(row[place]) for row in rows))
        for place, name in enumerate(("request of a hook", "keyturn hook codex"))
    )
    return Figure(
        "A coding agent's call without people",
        f"{plan.rounds} rounds of {plan.requests} requests and {plan.commands} runs of "
        "the command.",
        (request, command),
        (plain("auto call of a coding agent: added by the hook", request),),
    )


async def _request(hooks: Hooks, client: httpx.AsyncClient) -> float:
    body = hooks.body(_COMMAND)

    async def ask() -> bool:
        answer = await client.post(CLAUDE_CODE.url_path, json=body)
        return answer.text == "{}"

    return await _timed(ask)


async def _command(hooks: Hooks) -> float:
    options = ("--url", hooks.stack.url, "--api-key", hooks.key)

    async def ask() -> bool:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keyturn", "hook", "codex", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ,
        )
        out, _ = await program.communicate(json.dumps(hooks.body(_COMMAND)).encode())
        return out.strip() == b"{}"

    return await _timed(ask)


async def _timed(ask: Callable[[], Awaitable[bool]]) -> float:
    began = time.perf_counter()
    if not await ask():
        raise NotMeasured("The gateway did not let the call run.")
    return (time.perf_counter() - began) * 1000
