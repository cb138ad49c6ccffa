"""The requests that the real client sent get the answers that it was seen to obey."""

from __future__ import annotations

import json

import pytest

from tests.connect.coding_agents.conftest import Hooks
from tests.connect.coding_agents.exchanges import CASES, CODEX_CASES, FOLDER

PLAYED = CASES | CODEX_CASES


def test_every_case_is_recorded() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {*PLAYED}


@pytest.mark.parametrize("name", PLAYED)
async def test_recorded_requests_get_their_answers(hooks: Hooks, name: str) -> None:
    case = PLAYED[name]
    ends, of = iter(case.ends), "codex" if name in CODEX_CASES else "claude-code"
    for at, exchange in enumerate(json.loads((FOLDER / f"{name}.json").read_text())):
        request, reply = exchange["request"], exchange["reply"]
        wanted = reply.get("hookSpecificOutput", reply)
        if request["hook_event_name"] == "PreToolUse" and case.ends:
            asked = await hooks.asking(request, of=of)
            await hooks.end(next(ends))
            assert await asked == wanted, at
        else:
            assert await hooks.ask(request, of=of) == wanted, at

    states = [await hooks.state(at) for at in range(len(case.ends))]
    assert states == [*case.states]
