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
from functools import partial
from pathlib import Path

import httpx

from bench.stats import Figure, NotMeasured, result
from bench.world import durable_store, in_turns
from keyturn.connect.coding_agents import CLAUDE_CODE
from keyturn.connect.hooks import hook_routes
from keyturn.gateway.policy.load import load_policy
from tests.api.api_stack import serving
from tests.connect.coding_agents.conftest import Hooks
from tests.service.harness import ServiceHarness

_POLICY = Path(__file__).parent.parent / "examples" / "coding_agents" / "policy.yml"
_COMMAND = "git log --oneline | head -20"


async def measure(*, is_quick: bool = False) -> Figure:
    """Measure both hooks."""
    rounds, requests, commands = (2, 5, 1) if is_quick else (6, 50, 5)
    rules = load_policy(_POLICY.read_text("utf-8"), _POLICY.name)
    async with (
        durable_store() as (store, _),
        serving(people := ServiceHarness(store, rules)) as stack,
    ):
        stack.api.routes = hook_routes(store)(stack.api.tenant, stack.api.limits)
        hooks = Hooks(stack, people, stack.key(agents=["coder"]))
        async with stack.client(hooks.key) as client:
            ask = {"request of a hook": partial(_request, hooks, client)}
            [request] = await in_turns(ask, rounds, requests)
            run = {"keyturn hook codex": partial(_command, hooks)}
            [command] = await in_turns(run, rounds, commands, warms_up=False)
    return Figure(
        "A coding agent's call without people",
        f"{rounds} rounds of {requests} requests and {commands} runs of the command.",
        (request, command),
        (result("auto call of a coding agent: added by the hook", request),),
    )


async def _request(hooks: Hooks, client: httpx.AsyncClient, _: str) -> float:
    body = hooks.body(_COMMAND)

    async def ask() -> bool:
        answer = await client.post(CLAUDE_CODE.url_path, json=body)
        return answer.text == "{}"

    return await _timed(ask)


async def _command(hooks: Hooks, _: str) -> float:
    url, key = hooks.stack.url, hooks.key
    env = {**os.environ, "KEYTURN_GATEWAY": url, "KEYTURN_API_KEY": key}

    async def ask() -> bool:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keyturn", "hook", "codex"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        out, _err = await program.communicate(json.dumps(hooks.body(_COMMAND)).encode())
        return out.strip() == b"{}"

    return await _timed(ask)


async def _timed(ask: Callable[[], Awaitable[bool]]) -> float:
    began = time.perf_counter()
    if not await ask():
        raise NotMeasured("The gateway did not let the call run.")
    return (time.perf_counter() - began) * 1000
