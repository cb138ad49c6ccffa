"""The same day with a remote agent, which submits over HTTP and runs its threads.

The scripts are those of the demo; their agent's program has a URL and an API key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.support_agent import graph
from keyturn.cli.demo import LEDGER, OUTAGE
from keyturn.cli.demo_scripts import SCRIPTS, policy_for
from tests.levels import sample
from tests.stories.remote_demo import open_remote_demo
from tests.stories.test_a_reviewers_day import STORIES

CONFIG = Path(__file__).parents[2] / "keyturn.yml"
OTHERWISE = {
    "outage": "What waits for its model is told in Slack by the gateway that runs it; "
    "a program elsewhere waits by itself, and tells people by its own means.",
}
"""Stories that end differently, and why."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "story", sample([one for one in STORIES if one not in OTHERWISE], 4)
)
async def test_the_story_ends_as_it_does_in_one_process(
    story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await played(story, tmp_path, monkeypatch)

    last = {"batch": ["batch.counted"], "digest": ["digest.posted"]}.get(story, [])
    assert told[:2] == ["agent.asked", "card.posted"]
    assert told[-1 - len(last) :] == ["agent.said", *last]
    wanted = iter(told)
    assert all(event in wanted for event in STORIES[story]), told


@pytest.mark.slow
@pytest.mark.parametrize("story", sample(["tamper", "queue", "similar", "shared"], 2))
async def test_its_script_holds(
    story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await played(story, tmp_path, monkeypatch)


async def played(
    story: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Play a script of the demo; return the names of its events."""
    told: list[str] = []
    monkeypatch.setenv(LEDGER, str(folder / "effects.jsonl"))
    monkeypatch.setenv(OUTAGE, str(folder / "away"))

    def say(event: str, **_: Any) -> None:
        told.append(event)

    policy = policy_for(CONFIG, story, folder)
    async with open_remote_demo(CONFIG, folder, policy, graph, say) as context:
        await SCRIPTS[story](context)
    return told
