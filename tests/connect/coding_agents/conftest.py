"""Serve the hooks of coding agents, with a policy and a reviewer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from keyturn.connect.hooks import hook_routes
from keyturn.gateway.approvals.decisions import Decision
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {users: [U0ANA, U0BEN, U0DAN]}
protect: {same_rejected_within: 0}
tools:
  Read: {tier: auto, effect: read}
  Glob: {tier: notify}
  Bash:
    args_schema:
      type: object
      properties: {command: {type: string}}
      required: [command]
      additionalProperties: true
  Drop: {tier: deny}
"""

GATED = "billing"


def is_opened(event: Event) -> bool:
    """Return whether a call was put to people."""
    return event.name is EventName.APPROVAL_OPENED


@dataclass
class Hooks:
    """The hooks of a gateway, and its people."""

    stack: ApiStack
    people: ServiceHarness
    key: str
    _count: Any = field(default_factory=itertools.count)

    def body(self, command: str = "make", **changes: Any) -> dict[str, Any]:
        """Return the body of a request as Claude Code 2.1.332 sends it."""
        return {
            "session_id": "5d1c",
            "transcript_path": "/home/dan/.claude/5d1c.jsonl",
            "cwd": "/home/dan/app",
            "prompt_id": "68b7",
            "permission_mode": "default",
            "effort": {"level": "medium"},
            "hook_event_name": "PreToolUse",
            "tool_name": "Bash",
            "tool_input": {"command": command, "description": "Build"},
            "tool_use_id": f"toolu_{next(self._count)}",
            **changes,
        }

    async def post(
        self,
        body: Any = None,
        *,
        of: str = "claude-code",
        wait_s: float = 30,
        **more: Any,
    ) -> httpx.Response:
        """Send one request of a hook; it waits for people for ``wait_s`` seconds."""
        headers = {"Keyturn-Hook-Wait": str(wait_s + 5), **more.pop("headers", {})}
        async with self.stack.client(more.pop("key", self.key)) as client:
            return await client.post(
                f"/v1/hooks/{of}", json=body or self.body(), headers=headers, **more
            )

    async def ask(self, body: Any = None, **more: Any) -> dict[str, Any]:
        """Return the answer to one request."""
        response = await self.post(body, **more)
        assert response.status_code == 200, response.text
        found: dict[str, dict[str, Any]] = response.json()
        return found.get("hookSpecificOutput", found)

    async def asking(
        self, body: Any = None, **more: Any
    ) -> asyncio.Task[dict[str, Any]]:
        """Send a request in a task, and return when its call waits for people."""
        async with self.stack.api.tenant.events.following(is_opened) as follower:
            task = asyncio.create_task(self.ask(body, **more))
            await follower.next(10.0)
        return task

    async def opened(self) -> list[str]:
        """Return the ids of the calls that were put to people, oldest first."""
        events = await self.people.announced(EventName.APPROVAL_OPENED)
        return [f"{one.approval}.0" for one in events]

    async def decide(self, decision: Decision, at: int = -1) -> None:
        """Decide a call as Ana: the newest one, or by its place."""
        await self.people.decide((await self.opened())[at], decision)

    async def deciding(self, ends: list[Decision | str]) -> None:
        """Decide each call when it waits for people."""
        async with self.stack.api.tenant.events.following(is_opened) as follower:
            done = 0
            while done < len(ends):
                if len(await self.opened()) == done:
                    await follower.wait(60)
                    continue
                await self.end(ends[done], done)
                done += 1

    async def end(self, end: Decision | str, at: int = -1) -> None:
        """Decide a call, or make it expire."""
        if not isinstance(end, str):
            await self.decide(end, at)
            return
        await self.people.overdue((await self.approval(at)).id)
        await self.people.sweeper.sweep()

    async def approval(self, at: int = -1) -> Approval:
        """Return the record of a call."""
        return await self.people.approval((await self.opened())[at])

    async def state(self, at: int = -1) -> str:
        """Return the state of a call."""
        return (await self.approval(at)).items[0].state.value


@pytest.fixture
async def hooks(store: Store) -> AsyncGenerator[Hooks]:
    """Serve the hooks over HTTP."""
    people = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with serving(people) as stack:
        routes = hook_routes(store, gated_servers=(GATED,))
        stack.api.routes = routes(stack.api.tenant, stack.api.limits)
        yield Hooks(stack, people, stack.key(agents=["coder"]))
