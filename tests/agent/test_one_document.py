"""The card, the hash, the count and the execution use one document.

Every kind of tool signature is called with every unusual spelling of its arguments,
through the real middleware and the real service on the real store.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads name generics without parameters
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.bot.cards.listing import boxes
from keyturn.gateway.approvals import resume_value
from keyturn.gateway.approvals.decisions import Approve, Click, Decided
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.service.submit.call_evaluation import usage_of
from keyturn.gateway.store.store import Store
from tests.agent.shapes import SPELLINGS, Noted, shapes
from tests.service.harness import ANA, CHLOE, POLICY, ServiceHarness, still_members

LISTED = "\n".join(f"  {name}: {{tier: approve}}" for name in shapes([]))
COUNTED = f"""
{POLICY.rstrip()}
{LISTED}
windows:
  seen: {{tools: [{", ".join(shapes([]))}], by: args.value, sum: 1, within: 24h}}
"""
ALIASES = {"valueAlias": "value"}


def obey(messages: list[BaseMessage]) -> AIMessage:
    """Make the call that the user writes as JSON."""
    last = messages[-1]
    if not isinstance(last, HumanMessage):
        return AIMessage("done")
    name, given = json.loads(last.text)
    return calling((name, given, "c1"))


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(COUNTED, "policy.yml"))


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes([]))
async def test_one_document_is_shown_hashed_counted_and_run(
    harness: ServiceHarness, shape: str
) -> None:
    noted: Noted = []
    agent: Any = create_agent(
        ScriptedModel(reply=obey),
        [shapes(noted)[shape]],
        middleware=[ApprovalMiddleware("support", gateway=harness.agents)],
        checkpointer=InMemorySaver(),
    )
    opened: dict[str, int] = {}
    runs = 0

    for number, args in enumerate(SPELLINGS.values()):
        noted.clear()
        config: RunnableConfig = {"configurable": {"thread_id": f"t{number}"}}
        words = json.dumps([shape, args])
        asked = await agent.ainvoke({"messages": [("user", words)]}, config)
        if not (pauses := asked.get("__interrupt__", ())):
            assert not noted
            continue
        item = await harness.item(pauses[0].value["item_id"])
        await _one_document(harness, item, pauses[0].value["args"], opened)
        await _approve(harness, item)
        answer = resume_value.answer_for(await harness.item(item.id))
        assert answer
        resume = {pauses[0].id: answer.model_dump(mode="json")}
        await agent.ainvoke(Command(resume=resume), config)

        (got,) = noted
        shown = {ALIASES.get(name, name): value for name, value in item.args.items()}
        unfit = {name: got[name] for name in got if name not in shown}
        assert digest.canonical({**got, **shown}) == digest.canonical(got)
        assert unfit in ({}, {"limit": None}, {"more": None})
        runs += 1

    assert runs


async def _approve(harness: ServiceHarness, item: Item) -> None:
    """Approve as one person does, or two where the window could not be measured."""
    approval = await harness.approval(item.id)
    click = Click(
        approval=approval.id,
        index=item.index,
        version=approval.version,
        action_hash=item.action_hash,
    )
    for person in (ANA, CHLOE):
        outcome = await harness.reviews.decide(
            click, Approve(), person, voters=still_members
        )
        if isinstance(outcome, Decided):
            return
    raise AssertionError(outcome)


async def _one_document(
    harness: ServiceHarness, item: Item, asked: dict[str, Any], opened: dict[str, int]
) -> None:
    assert asked == item.args
    assert item.action_hash == digest.action_hash(item.action)
    # The card: short arguments are in the first box, as text or as JSON.
    text = "\n".join(boxes(item.tool, item.args, ()))
    for name, value in item.args.items():
        assert name in text
        if not isinstance(value, str | list | dict):
            assert json.dumps(value) in text
    keys = harness.store.keys_of_tenant("default")
    found = usage_of(
        harness.policy,
        keys,
        item.ctx,
        item.tool,
        item.args,
        declared_schema=item.args_schema,
        requester="",
    )
    for use in found.uses:
        opened[use.window] = opened.get(use.window, 0) + 1
        totals = await harness.store.windows.totals(keys.head("none"), 0, [use])
        assert totals[use.name] >= opened[use.window] * use.micro
