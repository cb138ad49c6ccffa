"""The requests that the real client sent get the answers that it was seen to obey."""

from __future__ import annotations

import json

import pytest

from tests.connect.coding_agents.conftest import Hooks
from tests.connect.coding_agents.exchanges import CASES, FOLDER


def test_every_case_is_recorded() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {*CASES}


@pytest.mark.parametrize("name", CASES)
async def test_the_recorded_requests_get_the_recorded_answers(
    hooks: Hooks, name: str
) -> None:
    ends = iter(CASES[name].ends)
    for at, exchange in enumerate(json.loads((FOLDER / f"{name}.json").read_text())):
        request, reply = exchange["request"], exchange["reply"]
        wanted = reply.get("hookSpecificOutput", reply)
        if request["hook_event_name"] == "PreToolUse" and wanted:
            asked = await hooks.asking(request)
            await hooks.end(next(ends))
            assert await asked == wanted, at
        else:
            assert await hooks.ask(request) == wanted, at

    found = [(await hooks.approval(at)).items[0] for at in range(len(CASES[name].ends))]
    assert [item.state.value for item in found] == [*CASES[name].states]
