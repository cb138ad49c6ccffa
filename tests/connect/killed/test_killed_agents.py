"""A durable agent of another framework is killed, and runs its call once."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import AGENT, POLICY, Desk
from tests.api.api_stack import serving
from tests.connect.killed.place import Place
from tests.service.harness import ServiceHarness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("framework", ["pydantic_ai", "openai_agents"]),
]


class World:
    """The gateway with its reviewers, and the processes of one agent."""

    def __init__(self, desk: Desk, env: dict[str, str], folder: Path) -> None:
        self.desk, self.place = desk, Place(folder)
        self._env, self._folder = env, folder

    async def start(self, framework: str, step: str) -> Process:
        program = ["-m", f"tests.connect.killed.{framework}_process", step]
        return await asyncio.create_subprocess_exec(
            sys.executable, *program, str(self._folder), stdout=PIPE, env=self._env
        )

    async def finished(self, framework: str, step: str) -> str:
        process = await self.start(framework, step)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    @property
    def paid(self) -> int:
        file = self.place.paid
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncGenerator[World]:
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with serving(harness) as stack, Desk.on(store) as desk:
        key = stack.key(agents=[AGENT])
        env = {"KEYTURN_GATEWAY": stack.url, "KEYTURN_API_KEY": key}
        yield World(desk, {**os.environ, **env}, tmp_path)


async def kill(process: Process) -> None:
    process.kill()
    await process.wait()


async def test_it_is_killed_while_people_decide(world: World, framework: str) -> None:
    await world.finished(framework, "begin")
    [item] = await world.desk.asked()
    await kill(await world.start(framework, "go-on"))
    await world.desk.approve(item)
    world.place.may_end.touch()

    told = await world.finished(framework, "go-on")

    assert "paid 5 to ada" in told
    assert world.paid == 1


@pytest.mark.parametrize("finding", [Finding.EXECUTED, Finding.RERUN])
async def test_it_is_killed_in_the_effect(
    world: World, framework: str, finding: Finding
) -> None:
    await world.finished(framework, "begin")
    [item] = await world.desk.asked()
    await world.desk.approve(item)
    process = await world.start(framework, "go-on")
    assert process.stdout is not None
    await process.stdout.readline()
    await kill(process)
    world.place.may_end.touch()
    await world.desk.lose(item)
    await world.desk.reaches(item, ItemState.IN_DOUBT)

    running = asyncio.create_task(world.finished(framework, "go-on"))
    await world.desk.reconcile(item, finding)
    told = await running

    is_again = finding is Finding.RERUN
    assert ("paid 5 to ada" if is_again else "took effect") in told
    assert world.paid == 1 + is_again
