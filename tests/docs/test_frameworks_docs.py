"""docs/pydantic-ai.md and docs/openai-agents.md work unchanged but for the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from agents import RunContextWrapper, set_tracing_disabled
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import POLICY, Call, Desk
from tests.api.api_stack import serving
from tests.connect.test_openai_agents import scripted
from tests.connect.test_pydantic_ai import returns_in
from tests.docs.test_readme import ROOT, blocks
from tests.service.harness import ServiceHarness

ARGS: dict[str, Any] = {"order": "61003", "amount": 45.0}


@pytest.fixture
async def desk(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Desk]:
    """Serve a gateway, and name it in the environment as the pages say."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    set_tracing_disabled(disabled=True)
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    async with serving(harness) as stack, Desk.on(store) as opened:
        monkeypatch.setenv("KEYTURN_GATEWAY", stack.url)
        monkeypatch.setenv("KEYTURN_API_KEY", stack.key(agents=["billing"]))
        yield opened


def program_of(page: str) -> dict[str, Any]:
    """Run the code of a page as one module."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks("python", text):
        exec(compile(block, page, "exec"), names)  # noqa: S102 - the page's code
    return names


def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    found = returns_in(messages)
    part = TextPart(found[-1].model_response_str()) if found else None
    return ModelResponse(parts=[part or ToolCallPart("refund", ARGS)])


async def test_the_pydantic_ai_page_waits_in_place(desk: Desk) -> None:
    page = program_of("pydantic-ai.md")

    with page["agent"].override(model=FunctionModel(model)):
        running = asyncio.create_task(page["answer"]("Refund order 61003."))
        [item] = await desk.asked(agent="billing")
        await desk.approve(item)
        assert await running == "refunded 45.0 for 61003"


async def test_the_pydantic_ai_page_waits_without_a_process(desk: Desk) -> None:
    page = program_of("pydantic-ai.md")

    with page["durable"].override(model=FunctionModel(model)):
        begun = await page["durable"].run("Refund order 61003.")
        finishing = asyncio.create_task(page["finish"](begun))
        [item] = await desk.asked(agent="billing")
        await desk.approve(item)
        assert await finishing == "refunded 45.0 for 61003"


class Refund(Call):
    @property
    def args(self) -> Any:
        return ARGS


async def test_the_openai_page_waits_in_place(desk: Desk) -> None:
    page = program_of("openai-agents.md")
    page["agent"].model = scripted([Refund(45, tool="refund")])

    running = asyncio.create_task(page["answer"]("Refund order 61003."))
    [item] = await desk.asked(agent="billing")
    await desk.approve(item)

    assert await running == "done"


async def test_the_openai_page_waits_without_a_process(desk: Desk) -> None:
    page = program_of("openai-agents.md")
    page["durable"].model = scripted([Refund(45, tool="refund")])

    saved = await page["begin"]("Refund order 61003.")
    running = asyncio.create_task(page["go_on"](saved))
    [item] = await desk.asked(agent="billing")
    await desk.approve(item)

    assert await running == "done"


async def test_the_requesters_of_both_pages_are_people_of_slack(desk: Desk) -> None:
    pydantic, openai = map(program_of, ("pydantic-ai.md", "openai-agents.md"))
    run = RunContextWrapper({"order": "61003", "user": "U0ANA"})

    gates = openai["asking"].tools[0].on_invoke_tool.gates
    asked = pydantic["requester"](type("Context", (), {"deps": "U0ANA"}))

    assert gates.thread(run) == "61003"
    assert gates.requester(run) == asked
    assert asked.has_slack_id
