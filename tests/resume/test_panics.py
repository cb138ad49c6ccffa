"""A panic of a library fails its run, and its call, like any other error."""

from __future__ import annotations

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.service.run.agents import AgentService
from tests.conftest import eventually
from tests.panics import apanic, panic
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack


async def test_a_run_that_panics_is_recorded_and_retried(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ThreadRef(stack.keys, "shop", "t1")

    async def has_failed() -> bool:
        run = await stack.store.stalled.find(at.keys, at.run)
        return run is not None and "Panic" in run.detail

    with monkeypatch.context() as patch:
        patch.setattr(AgentService, "submit", apanic)
        async with stack.working():
            await stack.ask(("email", {"to": "ana@example.org"}))
            await eventually(has_failed)
            patch.undo()
            await stack.asked()


async def test_a_tool_that_panics_has_failed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_tools, "note", panic)
    async with stack.working():
        await stack.ask(("email", {"to": "ana@example.org"}))
        (email,) = await stack.asked()
        await stack.decide(email)
        words = await stack.words()

    assert (await stack.states())[0] is ItemState.FAILED
    assert "unwrap failed" in words
