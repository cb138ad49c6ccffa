"""A thread that Keyturn runs is run again when its calls could not be submitted."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.agent import bridge
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.run.agents import AgentService
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, REFUND, Stack


class Cut:
    """Submissions that reach the store, whose answers do not come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
        self.left = times
        self._submit = AgentService.submit
        monkeypatch.setattr(AgentService, "submit", self._cut(self._submit))
        monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.001)

    def _cut(self, submit: Any) -> Any:
        async def cut(service: AgentService, turn: Any) -> Any:
            verdicts = await submit(service, turn)
            if self.left:
                self.left -= 1
                raise StoreUnavailable("The store does not answer.")
            return verdicts

        return cut


async def test_a_call_is_asked_about_when_the_store_is_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when the lease nearly ends.
    monkeypatch.setattr(bridge, "HAND_BACK_S", 3600.0)
    cut = Cut(monkeypatch, times=2 * bridge.PORT_TRIES)
    async with stack.working(retries=AT_ONCE):
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.decide(item)

        assert await stack.words() == "refunded 78291 899"
        await stack.idle()

    assert cut.left == 0
    assert len(sample_tools.ledger()) == 1
    assert await stack.events(EventName.RUN_WAITING)
    # The calls with lost answers have ended; no one can decide them any more.
    states = [one.state for one in await stack.items()]
    assert states.count(ItemState.EXECUTED) == 1
    assert not {ItemState.PENDING, ItemState.AUTHORIZED} & set(states)


async def test_a_submission_is_repeated_as_long_as_the_lease_of_the_thread_lives(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack.store.threads, "_lease_ms", 120_000)
    cut = Cut(monkeypatch, times=2 * bridge.PORT_TRIES)
    async with stack.working(retries=AT_ONCE):
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.decide(item)

        assert await stack.words() == "refunded 78291 899"
        await stack.idle()

    assert cut.left == 0
    assert not await stack.events(EventName.RUN_WAITING)
    # The same question each time: one call waited, and nothing was ended.
    assert [one.state for one in await stack.items()] == [ItemState.EXECUTED]
