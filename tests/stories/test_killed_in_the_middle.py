"""Kill -9 everything before and right after a decision: it counts, and runs once."""

from __future__ import annotations

import json
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.apart import cli_process
from tests.apart.cli_process import LEASE
from tests.browser.demo_process import Demo

CHANNEL = "C0APPROVALS"
WAIT_S = 60.0
WAITING = "SELECT count(*) FROM writes WHERE channel = '__interrupt__'"


@pytest.fixture(params=["socket", "http"])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    # What a killed process held is kept for it as long as its lease lives: 15 seconds.
    running = Demo(tmp_path, request.param, {LEASE: "4000"})
    running.program = cli_process.__name__
    running.start()
    yield running
    running.stop()


def state(demo: Demo) -> dict[str, Any]:
    """Return what Ana sees in Slack."""
    with urllib.request.urlopen(f"{demo.url}/sandbox/state?user=U0ANA") as answer:  # noqa: S310 - our own sandbox
        seen: dict[str, Any] = json.load(answer)
    return seen


def card(demo: Demo, *words: str) -> dict[str, Any]:
    """Wait for the bot's card with one of these texts; return its newest copy."""
    seen: dict[str, Any] = {}
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        seen = state(demo)
        for channel in seen["channels"]:
            for message in reversed(channel["messages"]):
                if message["metadata"] and shows(message, *words):
                    found: dict[str, Any] = message
                    return found
        time.sleep(0.05)
    raise AssertionError(f"no card says any of {words!r}: {json.dumps(seen)}")


def shows(message: dict[str, Any], *words: str) -> bool:
    """Return whether a message contains one of these texts."""
    text = json.dumps(message["blocks"])
    return any(word in text for word in words)


def click(demo: Demo, message: dict[str, Any], action: str) -> None:
    """Click a button as Ana, and wait for the answer."""
    row = next(block for block in message["blocks"] if block["type"] == "actions")
    body = {
        "user": "U0ANA",
        "type": "block_actions",
        "channel": CHANNEL,
        "ts": message["ts"],
        "block_id": row["block_id"],
        "action_id": action,
    }
    request = urllib.request.Request(  # noqa: S310 - our own sandbox
        f"{demo.url}/sandbox/act",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own sandbox
        assert json.load(answer)["ok"]


def until_saved(demo: Demo) -> None:
    """Wait until the thread waits in its checkpoints.

    Killed before that, the agent asks again after the start, and its first approval
    lapses, even an approved one.
    """
    deadline = time.monotonic() + WAIT_S
    with closing(sqlite3.connect(demo.data / "checkpoints.sqlite")) as checkpoints:
        while not checkpoints.execute(WAITING).fetchone()[0]:
            assert time.monotonic() < deadline, "The thread does not wait."
            time.sleep(0.05)


@pytest.mark.timeout(600)
def test_a_card_and_its_decision_outlive_the_kill_of_everything(demo: Demo) -> None:
    card(demo, "Expires")
    until_saved(demo)
    demo.kill()
    demo.start()
    click(demo, card(demo, "Expires"), "approve")
    demo.kill()
    demo.start()
    final = card(demo, ", done ", "know whether this ran")

    # Killed inside the tool, a person is asked; otherwise it ran, and once.
    amounts = [effect["args"]["amount"] for effect in demo.effects()]
    assert amounts == [899] or (not amounts and shows(final, "know whether this ran"))
