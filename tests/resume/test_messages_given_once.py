"""A message is given to the agent once, also when processes die in any order."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.port import connected
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.jobs import Delivery
from tests.levels import size
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES, Stack


def look_up(order: str) -> str:
    """Return a message that has the agent look up an order."""
    return json.dumps([["look_up", {"order": order}]])


async def taken_by_one_that_dies(stack: Stack, text: str) -> Delivery:
    """Give the thread a message as a worker that dies before it acknowledges it."""
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    await stack.say(text)
    delivery = await queue.take("one-that-dies", block_ms=1000)
    assert delivery
    with connected(AgentService(stack.store, lambda: RULES)):
        await stack.runner.start("t1", delivery.job.input, key=delivery.job.id)
    return delivery


@pytest.mark.slow
async def test_a_message_that_another_one_overtook_is_not_given_again(
    stack: Stack,
) -> None:
    await taken_by_one_that_dies(stack, look_up("A"))
    await stack.say(look_up("B"))

    async with stack.working():
        await stack.words(2)
        await stack.idle()

    assert sample_tools.ledger() == ["look_up A", "look_up B"]
    told = await stack.events(EventName.RUN_FINISHED)
    assert [one.data["text"] for one in told] == ["found A", "found B"]


@pytest.mark.slow
async def test_it_is_known_however_many_came_since(stack: Stack) -> None:
    others = size(deep=12, short=4)
    delivery = await taken_by_one_that_dies(stack, look_up("A"))
    async with stack.working():
        for number in range(others):
            await stack.say(look_up(f"B{number}"))
        await stack.words(others + 1)
        # Under another id of the stream, as a job that was put back comes again.
        await stack.store.queue(stack.keys).put(delivery.job)
        await stack.idle()

    assert sample_tools.ledger().count("look_up A") == 1
