"""A newcomer plays the tutorial, with the files and the commands of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.sandbox.client import People, Person
from keyturn.sandbox.json_types import JsonObject
from keyturn.testing.review import Card
from tests.docs.test_readme import ROOT
from tests.stories.test_your_own_agent import in_sandbox

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
CHANNEL = "#refunds"
PATIENCE_S = 60


def _file(name: str) -> str:
    [text] = re.findall(rf"^```\w+ {name}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


class Newcomer:
    """Somebody in a folder, with a terminal and the page of the local Slack."""

    def __init__(self, folder: Path, people: People) -> None:
        self._folder = folder
        self.dan, self.ana = people.person("U0DAN"), people.person("U0ANA")
        self.ben = people.person("U0BEN")

    async def asks(self, words: str) -> str:
        """Let Dan write to the agent; return the time stamp of the card."""
        assert f"@Keyturn {words}" in PAGE
        await self.dan.say(CHANNEL, f"@keyturn {words}")
        order = words.split()[1]
        card = await self.ana.message_with(
            CHANNEL, lambda m: Action.APPROVE in str(m) and order in str(m), PATIENCE_S
        )
        return str(card["ts"])

    async def approves(self, person: Person, card: str) -> None:
        """Press Approve."""
        await person.click(CHANNEL, card, Action.APPROVE)

    async def edits(self, card: str, *, reason: str, **arguments: str) -> None:
        """Press Edit as Ana, and submit the form."""
        [message] = [
            one for one in await self.ana.messages(CHANNEL) if one["ts"] == card
        ]
        await Card(self.ana, CHANNEL, message).edit(reason, **arguments)

    async def reads(self, *words: str) -> None:
        """Wait for a message with all these words."""
        await self.dan.message_with(CHANNEL, _has(*words), PATIENCE_S)

    def runs(self, command: str) -> str:
        """Run a command of the page; return its output."""
        assert command in PAGE
        words = [sys.executable, "-m", *shlex.split(command)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        env["KEYTURN_DATA_DIR"] = ".keyturn/sandbox"
        return subprocess.run(
            words, cwd=self._folder, env=env, capture_output=True, text=True, check=True
        ).stdout

    def refunds(self) -> list[str]:
        """Return the lines that the tool wrote."""
        return (self._folder / "refunds.txt").read_text("utf-8").splitlines()


def _has(*words: str) -> Callable[[JsonObject], bool]:
    return lambda message: all(word in str(message["blocks"]) for word in words)


@pytest.mark.slow
async def test_the_tutorial_works_from_start_to_end(tmp_path: Path) -> None:
    for name in ("shop.py", "keyturn.yml"):
        (tmp_path / name).write_text(_file(name), encoding="utf-8")
    with in_sandbox(tmp_path) as (page, output):
        async with People(page) as people:
            newcomer = Newcomer(tmp_path, people)
            dan, ana = newcomer.dan, newcomer.ana

            await newcomer.approves(ana, await newcomer.asks("refund 61003 120"))
            await newcomer.reads("Refunded 120.0 for order 61003.")
            assert newcomer.refunds() == ["61003 120.0"]

            card = await newcomer.asks("refund 61004 899")
            await newcomer.edits(card, amount="449.5", reason="half was damaged")
            await newcomer.reads("Refunded 449.5", "449.5", "half was damaged")

            _change_the_rules(tmp_path / "keyturn.yml")
            assert "refund" in newcomer.runs("keyturn policy check")
            output.until("policy.loaded", times=2)
            card = await newcomer.asks("refund 61005 1299")
            await newcomer.approves(ana, card)
            await dan.message_with(CHANNEL, _has("1 of 2"), PATIENCE_S)
            await newcomer.approves(newcomer.ben, card)
            await newcomer.reads("Refunded 1299.0")

            newcomer.runs(
                'keyturn freeze tool refund --reason "the payment provider is down"'
            )
            await newcomer.dan.say(CHANNEL, "@keyturn refund 61006 10")
            await newcomer.reads("does not run until it is unfrozen")
            newcomer.runs("keyturn unfreeze tool refund")
            assert "refund " in newcomer.runs("keyturn stats")
            assert "✔" in newcomer.runs("keyturn audit verify")
    assert len(newcomer.refunds()) == 3


def _change_the_rules(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    text = text.replace("    refund: {tier: approve}\n", _file("rule"))
    text = text.replace("  tools:\n", f"{_file('tiers')}  tools:\n")
    file.write_text(text, encoding="utf-8")
