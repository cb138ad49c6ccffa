"""A person reads that no replica has confirmed a click, and the card shows the rest."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.store.connection.connection import Connection, Reply
from keyturn.gateway.store.records import atomic_write
from keyturn.gateway.store.records.atomic_write import CHANGE
from tests.bot.bot_stack import CHANNEL, Stack, has_button


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_click_that_no_replica_confirms_is_told_so_and_counts_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    write = CHANGE

    async def unconfirmed(conn: Connection, **values: Any) -> list[Reply]:
        if is_kept:
            await write(conn, **values)
        raise NotConfirmed

    async with stack.running():
        verdict = await stack.refund()
        card, ana = await stack.card(verdict), stack.actor("U0ANA")
        with monkeypatch.context() as patch:
            patch.setattr(atomic_write, "CHANGE", unconfirmed)

            await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

            await stack.told("U0ANA", "so it may yet be lost")
        if not is_kept:
            await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))

        item = (await stack.approval(verdict)).items[0]
        assert item.decision is not None
        assert len(item.votes) == 1
