"""A reviewer's day, played by the product itself, over both transports.

Start here: each story is `keyturn demo --script …`, played by the real agent, gateway,
store and bot against the sandbox Slack, over the same signed HTTP as its page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked
from tests.levels import is_deep

ROOT = Path(__file__).parents[2]
STOP_S = 90
STORIES = {
    "approve": ["item.executed"],
    "edit": ["reviewer.submitted", "reviewer.submitted", "item.executed"],
    "reject": ["item.rejected"],
    "respond": ["item.answered"],
    "inquiry": ["approval.asked", "approval.replied", "item.executed"],
    "expire": ["item.expired"],
    "multi": ["item.rejected", "item.executed", "item.executed"],
    "escalate": [
        "approval.reminded",
        "item.voted",
        "approval.escalated",
        "item.executed",
    ],
    "batch": ["reviewer.submitted", "item.executed", "item.rejected"],
    "question": ["item.answered", "question.answered", "item.executed"],
    "digest": ["item.executed", "item.rejected", "agent.said", "digest.posted"],
    "direct": ["copy.posted", "item.voted", "item.executed", "copy.updated"],
    "outage": ["item.executed", "run.waiting", "run.resumed"],
    "hook": ["item.authorized", "item.handed_over"],
    "mcp": ["item.executed", "mcp.listed", "item.executed"],
    "tamper": ["card.posted", "store.forged", "security.detected"],
    "stock": ["item.handed_over", "agent.said", "card.handed_over", "item.rejected"],
}
CROWDS = {"queue": ["queue.counted"], "shared": ["card.counted"]}
"""Stories of many threads, which end with a count."""

LAST = {
    **CROWDS,
    "tamper": ["audit.verified", "export.verified", "export.refused"],
    "batch": ["agent.said", "batch.counted"],
    "digest": ["agent.said", "digest.posted"],
    "hook": ["hook.answered", "card.reported"],
    "mcp": ["mcp.answered"],
}
"""The last events of the stories that end otherwise than with the agent's words."""

Line = dict[str, Any]
SHOWN = {
    "digest": [
        "1 of 2 decisions: 0 edited, 1 rejected",
        "Calls of each day",
        '"type": "data_visualization"',
        "change_address",
    ],
    "question": [
        '"answers": ["12 Mill Lane", "CB1 2AB Cambridge", "GB", "E-mail, Text message"]'
    ],
}
"""What the lines of a story contain."""


PLAYED = [
    (story, mode)
    for number, story in enumerate(STORIES | CROWDS)
    for place, mode in enumerate(("socket", "http"))
    if is_deep() or number % 2 == place
]
"""The transports take turns; a deep run plays each story over both."""


def play(*words: str) -> tuple[int, list[Line]]:
    """Run the command; return its exit code and its lines."""
    run = Forked("keyturn", "demo", *words, "--json", cwd=ROOT)
    lines = [json.loads(line) for line in run.stdout]
    return run.wait(STOP_S), lines


@pytest.mark.slow
@pytest.mark.parametrize(("story", "mode"), PLAYED)
def test_the_story_ends_as_it_should(story: str, mode: str) -> None:
    code, lines = play("--script", story, "--mode", mode)

    assert (code, lines[-1]["ok"]) == (0, True), lines
    told = [line["event"] for line in lines]
    assert told[0] == "script.started"
    last = LAST.get(story, ["agent.said"])
    assert told[-1 - len(last) : -1] == last
    wanted = iter(told)
    assert all(event in wanted for event in (STORIES | CROWDS)[story]), told
    assert all("T" in line["at"] for line in lines)
    said = "\n".join(map(json.dumps, lines))
    assert [words for words in SHOWN.get(story, []) if words not in said] == []
    if story in FACTS:
        FACTS[story](lines)


def of_a_batch(lines: list[Line]) -> None:
    """Check that 56 calls take five interactions and seven clicks."""
    counted = line_of(lines, "batch.counted")
    assert (counted["approved"], counted["edited"], counted["rejected"]) == (54, 1, 1)
    assert counted["interactions"] <= 5
    assert counted["clicks"] <= 7
    assert counted["card_updates"] <= 3


def of_a_queue(lines: list[Line]) -> None:
    """Check that 20 threads take three interactions and three clicks."""
    counted = line_of(lines, "queue.counted")
    assert counted["approved"] == counted["cards"] == 20
    assert (counted["interactions"], counted["clicks"]) == (3, 3)


def of_a_shared_card(lines: list[Line]) -> None:
    """Check that 20 threads share a card, and take a click and its confirmation."""
    counted = line_of(lines, "card.counted")
    assert (counted["approved"], counted["cards"], counted["clicks"]) == (20, 1, 2)
    # Several calls of the twenty share each update; a busy machine makes more of them.
    assert counted["card_updates"] <= 10


def of_two_people(lines: list[Line]) -> None:
    """Check that a refund over 1000 takes two people, one of them senior."""
    clicks = [line["by"] for line in lines if line["event"] == "reviewer.clicked"]
    votes = [(line["have"], line["need"]) for line in lines if "have" in line]
    assert clicks == ["U0ANA", "U0CHLOE"]
    assert votes == [(1, 2)]


def of_an_edit(lines: list[Line]) -> None:
    """Check that each line names its call, and the agent the edit and its reason."""
    about = [line for line in lines if line["event"].startswith(("item.", "reviewer."))]
    assert all(line["item"].startswith(line["approval"]) for line in about)
    words = line_of(lines, "agent.said")["text"]
    assert "449.50 instead of 899.00" in words
    assert "Only half of it was damaged." in words


def of_a_forgery(lines: list[Line]) -> None:
    """Check that a forged approval runs nothing, and that the log proves it."""
    forged = line_of(lines, "card.posted")["approval"]
    assert line_of(lines, "security.detected")["approval"] == forged
    assert line_of(lines, "audit.verified")["entries"] >= 4
    assert line_of(lines, "export.refused")["first_bad_index"] is not None
    assert "item.executed" not in {line["event"] for line in lines}


FACTS = {
    "tamper": of_a_forgery,
    "batch": of_a_batch,
    "queue": of_a_queue,
    "shared": of_a_shared_card,
    "escalate": of_two_people,
    "edit": of_an_edit,
}


def line_of(lines: list[Line], event: str) -> Line:
    """Return the only line with an event."""
    (found,) = (line for line in lines if line["event"] == event)
    return found
