"""The hooks of coding agents keep what every connector promises."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from keyturn.connect.coding_agents import STILL_WAITS
from keyturn.connect.hooks import hook_routes
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    HANDED_OVER,
    POLICY,
    Behaviour,
    Call,
    Desk,
    a_call_answered_elsewhere_is_not_taken,
    name_of,
    three_calls_are_decided_in_any_order,
)
from tests.api.api_stack import serving
from tests.connect.coding_agents.conftest import Hooks
from tests.service.harness import ServiceHarness

# Only the gateway answers a hook. Codex offers no edit, which the second one has.
CLAUDE_CODE = [
    one for one in HANDED_OVER if one is not a_call_answered_elsewhere_is_not_taken
]
CODEX = [one for one in CLAUDE_CODE if one is not three_calls_are_decided_in_any_order]


@dataclass
class Response:
    """The calls of one response; the program asks about each, then runs it or not."""

    hooks: Hooks
    desk: Desk
    of: str
    calls: Sequence[Call]
    working: asyncio.Task[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = [
            self.hooks.body(tool_name=call.tool, tool_input=call.args)
            for call in self.calls
        ]
        self.working = asyncio.create_task(self.work())

    async def work(self) -> list[str]:
        return await asyncio.gather(*map(self.run, self.bodies))

    async def run(self, body: dict[str, object]) -> str:
        """Make the call until it is decided, as the model is told to."""
        answer = await self.hooks.ask(body, of=self.of, wait_s=1)
        while answer.get("permissionDecisionReason") == STILL_WAITS:
            answer = await self.hooks.ask(body, of=self.of, wait_s=1)
        if answer.get("permissionDecision") == "deny":
            return str(answer["permissionDecisionReason"])
        args = answer.get("updatedInput", body["tool_input"])
        return await self.desk.bank.pay(**args)

    async def outputs(self) -> list[str]:
        return await self.working

    async def replay(self) -> list[str]:
        """Resume the session: its open calls have the same ids."""
        return await self.work()

    async def stop(self) -> None:
        self.working.cancel()
        await asyncio.wait([self.working])


@dataclass
class Program:
    """A coding agent with the tools of the desk."""

    hooks: Hooks
    desk: Desk
    of: str

    async def propose(self, calls: Sequence[Call]) -> Response:
        return Response(self.hooks, self.desk, self.of, calls)


@pytest.mark.parametrize(
    ("of", "behaviour"),
    [
        *(("claude-code", one) for one in CLAUDE_CODE),
        *(("codex", one) for one in CODEX),
    ],
    ids=lambda it: it if isinstance(it, str) else name_of(it),
)
async def test_hooks_keep_the_promises_of_connectors(
    behaviour: Behaviour, of: str, store: Store
) -> None:
    people = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with Desk.on(store) as desk, serving(people) as stack:
        stack.api.routes = hook_routes(store)(stack.api.tenant, stack.api.limits)
        hooks = Hooks(stack, people, stack.key(agents=[AGENT]))
        async with asyncio.timeout(60):
            await behaviour(desk, Program(hooks, desk, of))
