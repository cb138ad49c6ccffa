"""The tests in this folder run over both transports, and the exceptions are real."""

from __future__ import annotations

import re

from keyturn.gateway.store.store import Store
from tests.in_process_only import (
    IN_PROCESS_ONLY,
    RACES_IN_ONE_PROCESS,
    STORIES_IN_ONE_PROCESS,
)
from tests.service.harness import ServiceHarness
from tests.transports import ROOT, AgentsOverHttp, Transport, asks


async def test_an_agent_asks_over_what_it_is_told(
    store: Store, transport: Transport
) -> None:
    harness = ServiceHarness(store)
    agents: object = harness.agents

    await harness.submit(("look_up_order", {"id": 1}))

    assert isinstance(agents, AgentsOverHttp) is (transport is Transport.HTTP)
    if isinstance(agents, AgentsOverHttp):
        assert (await agents.place()).api_key


def test_each_exception_names_a_test_and_why() -> None:
    for name, why in IN_PROCESS_ONLY.items():
        path, _, function = name.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), name
        assert why.endswith(".")


def test_each_story_and_race_asks_over_http_or_is_named() -> None:
    tests = ROOT / "tests"
    named = {"races": RACES_IN_ONE_PROCESS, "stories": STORIES_IN_ONE_PROCESS}
    for folder, reasons in named.items():
        files = (tests / folder).glob("test_*.py")
        assert {one.name for one in files if not asks(one)} == set(reasons)
