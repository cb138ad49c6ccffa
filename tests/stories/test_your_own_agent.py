"""A newcomer puts the README's agent behind the gate, without any account."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from keyturn.bot.ids import Action
from keyturn.sandbox.client import People
from keyturn.sandbox.json_types import JsonObject
from tests.docs.test_readme import ROOT, blocks

MODEL = """
from langchain_core.messages import AIMessage

from keyturn.agent.scripted_model import calling, scripted

CALL = ("wire_money", {"to": "ACME", "amount": 12.5}, "c1")
model = scripted([calling(CALL), AIMessage("It is paid.")])
"""
PATIENCE_S = 60
STOP_S = 30


class Output:
    """The output of a running command, read by a thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def until(self, words: str, *, times: int = 1) -> str:
        """Wait until so many lines contain words; return all output."""
        with self._news:
            found = self._news.wait_for(
                lambda: sum(words in one for one in self._lines) >= times, PATIENCE_S
            )
            assert found, "".join(self._lines)
            return "".join(self._lines)

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()


@contextmanager
def in_sandbox(folder: Path) -> Generator[tuple[str, Output]]:
    """Run ``keyturn run --sandbox`` in a folder; yield the link and the output."""
    words = [sys.executable, "-m", "keyturn", "run", "--sandbox", "--port", "0"]
    paths = {"PYTHONPATH": f"{ROOT}:{folder}", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, **paths},
    ) as process:  # fmt: skip
        assert process.stdout
        output = Output(process.stdout)
        found = re.search(r"http://[\d.]+:\d+", output.until("Switch to one"))
        assert found
        yield found[0], output
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=STOP_S) == 0


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """Write the README's example, run it, and return the printed link."""
    code = blocks("python")[0].replace('"openai:gpt-5"', "model")
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    agent = f"from model import model\n{code}"
    (tmp_path / "billing.py").write_text(agent, encoding="utf-8")
    (tmp_path / "keyturn.yml").write_text(blocks("yaml")[0], encoding="utf-8")
    with in_sandbox(tmp_path) as (link, output):
        output.until("finance: Ana Alves, Ben Boer")
        yield link


@pytest.mark.slow
async def test_the_readmes_agent_goes_on_after_an_approval(page: str) -> None:
    channel = "#agent-approvals"
    async with People(page) as people:
        dan, ana = people.person("U0DAN"), people.person("U0ANA")
        await dan.say(channel, "@keyturn pay ACME")
        card = await ana.message_with(channel, _has_buttons, PATIENCE_S)

        await ana.click(channel, str(card["ts"]), Action.APPROVE)

        await dan.message_with(channel, _says("It is paid."), PATIENCE_S)


def _has_buttons(message: JsonObject) -> bool:
    return Action.APPROVE in str(message["blocks"])


def _says(words: str) -> Callable[[JsonObject], bool]:
    return lambda message: words in str(message["blocks"])
