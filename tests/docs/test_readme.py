"""The examples of the README work unchanged."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from keyturn.agent import ApprovalMiddleware
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.store import Store
from tests.docs.chat_server import calls, chat_server, says
from tests.docs.reviewing import HEAD, approve_all

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_ten_lines_put_an_agent_behind_the_gate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    code = blocks("python")[0]
    path = tmp_path / "billing.py"
    path.write_text(code, encoding="utf-8")

    names: dict[str, object] = {}
    exec(compile(code, str(path), "exec"), names)  # noqa: S102 - the README's own code

    nodes = getattr(names["graph"], "nodes")  # noqa: B009 - a graph of unknown type
    assert any(node.startswith(ApprovalMiddleware("x").name) for node in nodes)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 12


async def test_the_ten_lines_wire_the_money_once_a_person_approved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    call = calls("wire_money", {"to": "ada", "amount": 90})
    with chat_server([call, says("The money is on its way.")]) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        names: dict[str, object] = {}
        exec(compile(blocks("python")[0], "README.md", "exec"), names)  # noqa: S102 - the README's own code
        rules = load_policy(HEAD, "policy.yml")
        async with Keyturn(policy=rules, url=store.conn.url, data_dir=tmp_path) as tk:
            ask = {"messages": [("user", "wire 90 to ada")]}
            run = asyncio.create_task(
                tk.run(names["graph"], ask, thread_id="t", agent="billing")
            )
            await approve_all(tk, RunRef(agent="billing", thread="t"))
            final = await run

    assert final["messages"][-2].text == "sent 90.0 to ada"
    assert final["messages"][-1].text == "The money is on its way."


def test_the_settings_of_the_readme_load() -> None:
    settings = yaml.safe_load(blocks("yaml")[0])

    policy = load_policy(yaml.safe_dump(settings["policy"]), "README.md")

    assert settings["agents"]["billing"]["graph"] == "billing.py:graph"
    assert policy.tools["wire_money"].tier == "approve"


def test_every_file_that_the_readme_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+?)\)", README)

    missing = [link for link in links if not (ROOT / link).exists()]

    assert not missing


def test_every_command_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make (\w+)`?", README))

    assert targets <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
