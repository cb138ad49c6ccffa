"""The card of an erased approval, and each copy of it, lose their content."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.people.erasing import Eraser
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, says
from tests.conftest import eventually
from tests.service.harness import DAN


async def test_a_card_is_replaced_by_one_sentence(live: Stack) -> None:
    (verdict,) = await live.submit(("process_refund", REFUND))
    card = await live.card(verdict)
    ana = live.actor("U0ANA")
    await ana.click(CHANNEL, str(card["ts"]), Action.REJECT)
    await ana.wait_for_view()
    await ana.submit({Input.REASON.value: "too much"})
    await live.card(verdict, says("Rejected"))
    found = await live.item(verdict)
    assert found.state is ItemState.REJECTED

    approval = approval_of(verdict.item_id)[0]
    # As after a version that noted no messages: nothing else would redact it.
    await live.store.posted_messages.forget(live.keys, approval)
    erased = await Eraser(live.store).erase(approval, by="cli/eve", is_dry_run=False)

    assert erased.approvals == (approval,)

    async def is_replaced() -> bool:
        found = [m for m in await ana.messages(CHANNEL) if m["ts"] == card["ts"]]
        return says("was erased")(found[0])

    await eventually(is_replaced)
    [stub] = [m for m in await ana.messages(CHANNEL) if m["ts"] == card["ts"]]
    assert "process_refund" not in str(stub)
    assert DAN.user not in str(stub)
