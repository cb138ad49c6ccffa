"""The model reads whether an edit is confirmed, was not made, or has no proof."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.edits import EDIT_MARK, UNCONFIRMED_MARK
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.lifetimes import lose_records
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack, open_stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})
HALF: JsonObject = {"order": "78291", "amount": 449.5}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the model's input besides its own messages, as one text a call."""
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger.txt"))
    texts: list[str] = []
    answer = sample_tools.answer

    def listening(messages: list[BaseMessage]) -> AIMessage:
        said = (one for one in messages if not isinstance(one, AIMessage))
        texts.append("\n".join(str(one.text) for one in said))
        return answer(messages)

    monkeypatch.setattr(sample_tools, "answer", listening)
    return texts


@pytest.fixture
async def stack(store: Store, tmp_path: Path, seen: list[str]) -> AsyncGenerator[Stack]:
    """Give a gateway whose agent has run an edited call."""
    assert not seen
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        async with opened.working():
            await opened.ask(REFUND)
            [item] = await opened.asked()
            await opened.decide(item, Edit(args=HALF, reason="half"))
            await opened.words()
            await opened.idle()
        yield opened


async def told_later(stack: Stack, tmp_path: Path, seen: list[str]) -> str:
    """Return what the model of a new process reads with the next message."""
    seen.clear()
    path = tmp_path / "checkpoints.db"
    async with open_stack(stack.store, path) as later, later.working():
        await later.say("how much was it?")
        await later.idle()
    return seen[-1]


async def test_within_30_days_a_made_edit_is_told_as_made(
    stack: Stack, clock: Clock, tmp_path: Path, seen: list[str]
) -> None:
    clock.move(days=25)

    told = await told_later(stack, tmp_path, seen)

    assert told.count(EDIT_MARK) == 1
    assert "449.5" in told


@pytest.mark.parametrize("loss", ["time", "data"])
async def test_a_sealed_edit_without_a_record_is_told_once_without_its_outcome(
    stack: Stack, clock: Clock, tmp_path: Path, seen: list[str], loss: str
) -> None:
    if loss == "time":
        clock.move(days=35)
    else:
        await lose_records(stack.store.conn)

    told = await told_later(stack, tmp_path, seen)

    assert told.count(EDIT_MARK) == 1
    assert '"amount": 449.5' in told
    assert "Whether the changed call took effect is unknown" in told
    assert UNCONFIRMED_MARK not in told
    assert "not-keyturn" not in told, "a genuine notice is no look-alike"


async def test_an_edit_without_a_record_and_without_a_seal_is_told_as_unconfirmed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: list[str]
) -> None:
    await lose_records(stack.store.conn)

    def never(*_given: object) -> bool:
        return False

    monkeypatch.setattr(AgentService, "_is_sealed", never)

    told = await told_later(stack, tmp_path, seen)

    assert told.count(UNCONFIRMED_MARK) == 1
    assert '"amount": 449.5' in told, "what the conversation says is not kept back"
    assert EDIT_MARK not in told
    assert "not-keyturn" not in told, "a genuine notice is no look-alike"
