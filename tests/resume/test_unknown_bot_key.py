"""A decision whose key a gateway does not know yet is not lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.trust.key_folder import Keyring
from tests.conftest import eventually
from tests.resume.resume_stack import Stack

REFUND = ("refund", {"order": "1", "amount": 5.0})


async def _is_refused(stack: Stack) -> bool:
    return stack.store.security.counts[SecurityKind.KEY_UNKNOWN] > 0


async def test_a_decision_runs_once_the_gateway_knows_the_key_of_the_bot(
    stack: Stack, tmp_path: Path
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    await stack.decide(item)
    known, stack.store.keyring = stack.store.keyring, Keyring(tmp_path)

    async with stack.working():
        await eventually(partial(_is_refused, stack))
        assert await stack.states() == [ItemState.AUTHORIZED]
        stack.store.keyring = known

        await stack.words()
        await stack.idle()

    assert await stack.states() == [ItemState.EXECUTED]
