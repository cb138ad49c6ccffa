"""Triage is asked by agents of every kind; the program or the settings name it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.request import TriageRequest
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import POLICY

TRIAGED = POLICY.replace("needs: [U0ANA]", "needs: [U0ANA], triage: {}")
FILE = """
class Eyes:
    async def assess(self, request):
        return {"raise_to": "escalate", "rationale": request.tool}


async def make():
    return Eyes()


def broken():
    raise RuntimeError("no key")


def needy(key):
    return Eyes()


eyes = Eyes()
number = 7
"""
CALL: dict[str, Any] = {
    "messages": [("user", json.dumps([("refund", {"order": "1", "amount": 1})]))]
}


class Eyes:
    """Triage that raises every call, and records its event loop."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def assess(self, request: TriageRequest) -> object:
        self.loops.append(asyncio.get_running_loop())
        return {"raise_to": "escalate"}


async def waits(tk: Keyturn, tier: Tier) -> None:
    """Wait until the one call that waits has this tier."""

    async def has_it() -> bool:
        waiting = [loaded async for loaded in tk.reviews.queue.waiting()]
        return [one.approval.items[0].tier for one in waiting] == [tier]

    await eventually(has_it)


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_agent_of_a_program_is_seen_by_the_triage_it_is_given(
    store: Store, tmp_path: Path, *, is_async: bool
) -> None:
    eyes = Eyes()
    policy = load_policy(TRIAGED, "policy.yml")
    async with Keyturn(
        policy=policy, url=store.conn.url, data_dir=tmp_path, triage=eyes
    ) as tk:
        config: Any = {"configurable": {"thread_id": "t1"}}
        graph: Any = attached(sample_tools.graph(), InMemorySaver())
        with tk.connected():
            if is_async:
                await graph.ainvoke(CALL, config)
            else:
                await asyncio.to_thread(graph.invoke, CALL, config)

        await waits(tk, Tier.ESCALATE)

    assert (eyes.loops == [asyncio.get_running_loop()]) is is_async


@pytest.mark.parametrize("name", ["eyes", "Eyes", "make"])
async def test_the_triage_that_the_settings_name_is_asked(
    store: Store, tmp_path: Path, name: str
) -> None:
    async with Keyturn(settings_in(tmp_path, store, f"eyes.py:{name}")) as tk:
        with tk.connected():
            graph: Any = attached(sample_tools.graph(), InMemorySaver())
            await graph.ainvoke(CALL, {"configurable": {"thread_id": "t1"}})

        await waits(tk, Tier.ESCALATE)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "raised RuntimeError: no key"),
        ("needy", "cannot be called without arguments; name a triage"),
        ("number", "cannot be called without arguments; name a triage"),
        ("other", "the module has no 'other'"),
    ],
)
async def test_a_triage_that_cannot_be_loaded_stops_the_start(
    store: Store, tmp_path: Path, name: str, why: str
) -> None:
    settings = settings_in(tmp_path, store, f"eyes.py:{name}")

    with pytest.raises(SettingsError, match=f"^'triage': .*{why}"):
        await Keyturn(settings).__aenter__()


def settings_in(folder: Path, store: Store, triage: str) -> Settings:
    """Return settings of this folder that name this triage."""
    (folder / "eyes.py").write_text(FILE, encoding="utf-8")
    (folder / "policy.yml").write_text(TRIAGED, encoding="utf-8")
    file = folder / "keyturn.yml"
    file.write_text(f"triage: {triage}\nredis_url: {store.conn.url}\n", "utf-8")
    return Settings.load(file, {})
