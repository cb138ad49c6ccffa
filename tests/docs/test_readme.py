"""The examples of the README work unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from tests.docs.chat_server import calls, chat_server, says
from tests.docs.reviewing import approved_run, embedded, run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


async def test_the_ten_lines_wire_the_money_once_a_person_approved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    call = calls("wire_money", {"to": "ada", "amount": 90})
    async with chat_server([call, says("The money is on its way.")]) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        code = blocks("python")[0]
        names = run(code)
        async with embedded(store, tmp_path) as tk:
            ask = {"messages": [("user", "wire 90 to ada")]}
            final = await approved_run(tk, names["graph"], ask, agent="billing")

    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert final["messages"][-2].text == "sent 90.0 to ada"
    assert final["messages"][-1].text == "The money is on its way."


def test_the_settings_of_the_readme_load() -> None:
    settings = yaml.safe_load(blocks("yaml")[0])

    policy = load_policy(yaml.safe_dump(settings["policy"]), "README.md")

    assert settings["agents"]["billing"]["graph"] == "billing.py:graph"
    assert policy.tools["wire_money"].tier == "approve"


def test_every_command_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make (\w+)`?", README))

    assert targets <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
