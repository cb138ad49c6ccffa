"""A reviewer's day, played by the product itself, over both transports.

Start here: each story is `keyturn demo --script …`, played by the real agent, gateway,
store and bot against the sandbox Slack, over the same signed HTTP as its page.
"""

from __future__ import annotations

import json
import subprocess
import sys
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
}


PLAYED = [
    (story, mode)
    for number, story in enumerate(STORIES)
    for place, mode in enumerate(("socket", "http"))
    if is_deep() or number % 2 == place
]
"""The transports take turns; a deep run plays each story over both."""


def play(*words: str) -> tuple[int, list[dict[str, Any]]]:
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
    assert told[:3] == ["script.started", "agent.asked", "card.posted"]
    last = {"batch": ["batch.counted"], "digest": ["digest.posted"]}
    counted = last.get(story, [])
    assert told[-2 - len(counted) :] == ["agent.said", *counted, "script.ended"]
    wanted = iter(told)
    assert all(event in wanted for event in STORIES[story]), told


@pytest.mark.slow
def test_56_calls_take_three_interactions_and_eight_clicks() -> None:
    _, lines = play("--script", "batch")

    (counted,) = (line for line in lines if line["event"] == "batch.counted")
    assert (counted["approved"], counted["edited"], counted["rejected"]) == (54, 1, 1)
    assert counted["interactions"] <= 3
    assert counted["clicks"] <= 8
    assert counted["card_updates"] <= 3


@pytest.mark.slow
def test_20_threads_take_three_interactions_and_three_clicks() -> None:
    code, lines = play("--script", "queue")

    assert code == 0, lines
    (counted,) = (line for line in lines if line["event"] == "queue.counted")
    assert counted["approved"] == counted["cards"] == 20
    assert (counted["interactions"], counted["clicks"]) == (3, 3)


@pytest.mark.slow
def test_20_threads_share_one_card_and_take_one_click_and_its_question() -> None:
    code, lines = play("--script", "shared")

    assert code == 0, lines
    (counted,) = (line for line in lines if line["event"] == "card.counted")
    assert (counted["approved"], counted["cards"], counted["clicks"]) == (20, 1, 2)
    assert counted["card_updates"] <= 3


@pytest.mark.slow
def test_every_line_says_when_and_about_what() -> None:
    # As a newcomer starts it, with all of its imports.
    run = subprocess.run(
        [sys.executable, "-m", "keyturn", "demo", "--script", "edit", "--json"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=STOP_S,
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines()]

    about = [line for line in lines if line["event"].startswith(("item.", "reviewer."))]
    assert all("T" in line["at"] for line in lines)
    assert all(line["item"].startswith(line["approval"]) for line in about)


@pytest.mark.slow
def test_a_refund_over_1000_takes_two_people_one_of_them_senior() -> None:
    _, lines = play("--script", "escalate")

    clicks = [line["by"] for line in lines if line["event"] == "reviewer.clicked"]
    votes = [(line["have"], line["need"]) for line in lines if "have" in line]
    assert clicks == ["U0ANA", "U0CHLOE"]
    assert votes == [(1, 2)]


@pytest.mark.slow
def test_an_edit_is_told_with_its_difference_and_its_reason() -> None:
    _, lines = play("--script", "edit")

    words = next(line["text"] for line in lines if line["event"] == "agent.said")

    assert "449.50 instead of 899.00" in words
    assert "Only half of it was damaged." in words
