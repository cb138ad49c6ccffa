"""The real client of Claude Code obeys the decisions, with real tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keyturn.connect.claude_settings import claude_settings
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from tests.connect.coding_agents import claude_code
from tests.connect.coding_agents.claude_code import ClaudeCode
from tests.connect.coding_agents.conftest import Hooks
from tests.connect.coding_agents.exchanges import (
    CASES,
    FILE,
    WRITE,
    Case,
    bash,
    keep,
    record,
)
from tests.connect.coding_agents.fake_model import Call, playing

pytestmark = [pytest.mark.deep, pytest.mark.xdist_group("claude-code")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the path of the client."""
    found = claude_code.program(tmp_path_factory.mktemp("claude"))
    if found is None:
        pytest.skip("the client of Claude Code cannot be downloaded")
    return found


@asynccontextmanager
async def connected(
    hooks: Hooks, client: str, home: Path, *turns: list[Call] | Any, **options: Any
) -> AsyncGenerator[ClaudeCode]:
    """Connect a client whose model makes these calls, then ends."""
    settings: Any = claude_settings(hooks.stack.url, **options)
    async with playing(*turns) as model:
        yield ClaudeCode(client, home, model, settings, hooks.key)


@pytest.mark.parametrize("name", CASES)
async def test_the_client_does_what_people_decide(
    hooks: Hooks, client: str, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    exchanges = record(hooks.stack.api)
    async with connected(hooks, client, tmp_path, *case.calls, reports=True) as claude:
        claude.settings |= {"permissions": case.permissions}
        claude.work.mkdir()
        (claude.work / "notes.txt").write_text("the notes")
        decisions = asyncio.create_task(hooks.deciding([*case.ends]))
        result = await claude.run()
        await decisions

    assert result["result"] == "Done."
    made = claude.work / FILE
    assert (made.read_text() if made.exists() else None) == case.made
    for text in case.told:
        assert text in claude.model.inputs()
    await check_records(hooks, case)
    keep(name, exchanges, tmp_path)


async def check_records(hooks: Hooks, case: Case) -> None:
    """Compare the records of calls with a case."""
    found = [(await hooks.approval(at)).items[0] for at in range(len(case.ends))]
    assert [item.state.value for item in found] == [*case.states]
    reports = [item.handed.reported for item in found if item.handed_to]
    oks = [None if one is None else one.ok for one in reports]
    assert oks == [*case.reported] or (not any(oks) and not any(case.reported))
    events = await hooks.people.announced(EventName.ITEM_EXECUTED)
    assert events == []


async def test_an_outage_stops_calls(hooks: Hooks, client: str, tmp_path: Path) -> None:
    async with connected(hooks, client, tmp_path, [WRITE]) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        hook["url"] = "http://127.0.0.1:1/v1/hooks/claude-code"
        await claude.run()

    assert not (claude.work / FILE).exists()
    assert "hook" in claude.model.inputs()


async def test_the_call_runs_unasked_without_the_block(
    hooks: Hooks, client: str, tmp_path: Path
) -> None:
    """`doctor --claude-settings` refuses such settings, because this is seen."""
    async with connected(hooks, client, tmp_path, [WRITE]) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        hook["url"] = "http://127.0.0.1:1/v1/hooks/claude-code"
        del hook["onFailure"]
        await claude.run("--allowedTools", "Bash")

    assert (claude.work / FILE).read_text() == "one\n"


async def test_a_missing_key_blocks(hooks: Hooks, client: str, tmp_path: Path) -> None:
    async with connected(hooks, client, tmp_path, [WRITE]) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        hook["allowedEnvVars"] = []
        await claude.run()

    assert not (claude.work / FILE).exists()


async def test_the_same_call_joins(hooks: Hooks, client: str, tmp_path: Path) -> None:
    async with connected(hooks, client, tmp_path, [WRITE], [WRITE]) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        # The first request waits for no time, the second until people have decided.
        hook["headers"]["Keyturn-Hook-Wait"] = "8"
        running = asyncio.create_task(claude.run())
        await model_is_told(claude, 2)
        assert "same call again" in claude.model.inputs()
        await hooks.decide(Approve())
        await running

    assert (claude.work / FILE).read_text() == "one\n"
    assert len(await hooks.opened()) == 1


async def model_is_told(claude: ClaudeCode, turns: int) -> None:
    """Wait until the model was asked so many times."""
    async with asyncio.timeout(120):
        while len(claude.model.asked) < turns:
            claude.model.was_asked.clear()
            await claude.model.was_asked.wait()


async def test_a_resumed_run_goes_on(hooks: Hooks, client: str, tmp_path: Path) -> None:
    async with connected(hooks, client, tmp_path, [WRITE], defers=True) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        hook["headers"]["Keyturn-Hook-Wait"] = "5"
        first = await claude.run()
        assert first["terminal_reason"] == "tool_deferred"
        assert first["deferred_tool_use"]["name"] == "Bash"
        await hooks.decide(Approve())

        again = await claude.run("--resume", first["session_id"], prompt="Go on.")

    assert again["result"] == "Done."
    assert (claude.work / FILE).read_text() == "one\n"
    assert len(await hooks.opened()) == 1
    assert await hooks.state() == "handed_over"


async def test_an_approval_does_not_answer_for_the_users_rules_on_quiet_calls(
    hooks: Hooks, client: str, tmp_path: Path
) -> None:
    """In the default mode, `-p` denies what its user was not asked about."""
    hooks.people.put_policy(("Read: {tier: auto", "Bash: {tier: auto"), of=QUIET)
    async with connected(hooks, client, tmp_path, [WRITE]) as claude:
        await claude.run()

    assert not (claude.work / FILE).exists()


QUIET = """
version: 1
defaults: {needs: support}
roles: {support: {users: [U0ANA]}}
tools:
  Read: {tier: auto}
"""


async def test_of_two_deferred_calls_none_runs_before_its_approval(
    hooks: Hooks, client: str, tmp_path: Path
) -> None:
    """Claude Code reports and resumes only one of them; the other one is lost."""
    calls = [bash(f"echo {n} >> {FILE}") for n in range(2)]
    async with connected(hooks, client, tmp_path, calls, defers=True) as claude:
        hook = claude.settings["hooks"]["PreToolUse"][0]["hooks"][0]
        hook["headers"]["Keyturn-Hook-Wait"] = "5"
        first = await claude.run()
        assert not (claude.work / FILE).exists()
        for at in range(2):
            await hooks.decide(Approve(), at)

        await claude.run("--resume", first["session_id"], prompt="Go on.")

    assert (claude.work / FILE).read_text() == "1\n"
    assert [await hooks.state(at) for at in range(2)] == ["authorized", "handed_over"]
