"""An agent with Keyturn's own middleware runs on the server, and is resumed there.

It claims its calls itself, so they are executed once, and not handed over.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.connect.hand_over import TRIES
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.protocol.records import ItemState
from tests.agent_server.bench import Bench
from tests.agent_server.test_decisions import LOOK, REFUND, paid
from tests.api.api_stack import serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]


def gateway_of(on: Bench) -> Path:
    """Return the file that names the gateway for the agent on the server."""
    return on.server.effects.with_name("gateway.json")


def refuse_the_agent(on: Bench) -> str:
    """Give the agent a key that the gateway refuses; return what it had."""
    given = gateway_of(on).read_text(encoding="utf-8")
    changed = json.dumps({**json.loads(given), "api_key": "tk_of_nobody"})
    gateway_of(on).write_text(changed, encoding="utf-8")
    return given


@pytest.fixture
async def gated(on: Bench) -> AsyncGenerator[Bench]:
    """Give the agent on the server a gateway over HTTP."""
    async with serving(on.people) as api:
        given = {"gateway": api.url, "api_key": api.key(agents=["a-gated"])}
        gateway_of(on).write_text(json.dumps(given), encoding="utf-8")
        yield on


async def test_an_approved_call_is_executed_once(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND, LOOK]])
    await gated.decide(thread, Approve())

    await gated.tick(3)

    assert gated.server.done(thread, "refund") == [paid(7.0)]
    [item] = [one for one in await gated.items(thread) if one.tool == "refund"]
    assert item.state is ItemState.EXECUTED
    assert item.handed_to == ""
    assert len(await gated.server.runs(thread)) == 2


async def test_an_edit_and_a_rejection_reach_it(gated: Bench) -> None:
    other = ["refund", {"order": "B2", "amount": 8.0}]
    thread = await gated.asked("gated", [[REFUND, other]])
    await gated.decide(thread, Edit(args={"order": "A1", "amount": 5.0}), Reject())

    await gated.tick(4)

    assert gated.server.done(thread) == [paid(5.0)]
    assert await gated.states(thread) == [ItemState.EXECUTED, ItemState.REJECTED]
    assert await gated.server.questions(thread) == []


async def test_an_answer_is_sent_again_after_its_run_failed(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND]])
    await gated.decide(thread, Approve())
    given = refuse_the_agent(gated)
    await gated.tick()
    assert await gated.states(thread) == [ItemState.AUTHORIZED]
    gateway_of(gated).write_text(given, encoding="utf-8")

    await gated.tick(3)

    assert gated.server.done(thread) == [paid(7.0)]
    assert await gated.states(thread) == [ItemState.EXECUTED]


async def test_an_agent_that_always_fails_is_not_run_for_ever(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND]])
    await gated.decide(thread, Approve())
    refuse_the_agent(gated)

    await gated.tick(TRIES + 3)

    assert len(await gated.server.runs(thread)) == 1 + TRIES
