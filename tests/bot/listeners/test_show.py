"""People find an approval by its short id, and only one that they may read."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.refs import when
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store import keys
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.listeners.test_read_access import answer, private_call

SAME = "145163ba"


@pytest.fixture
def same_short_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all approvals the same short id."""
    made = keys.approval_id

    def same(tenant: str, bits: str) -> str:
        return made(tenant, SAME + bits[len(SAME) :])

    monkeypatch.setattr(keys, "approval_id", same)


async def test_what_a_card_shows_finds_its_approval(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        approval = await stack.approval(verdict)
        short = short_id(approval.id)
        card = await stack.card(verdict, says(f"`{short}`"))

        assert approval.id not in str(card["blocks"][2]["elements"])
        for typed in (
            short,
            short.upper(),
            f"`{short}`",
            approval.id,
            approval.id[:20],
        ):
            told = await answer(stack, "U0ANA", f"show {typed}", CHANNEL)
            assert "Tool: `process_refund`." in told
            assert f"`{short}`" in told
            # In the reader's own time zone, as on the card.
            assert when(approval.expires_at_ms).text in told


@pytest.mark.usefixtures("same_short_id")
async def test_an_ambiguous_short_id_names_the_whole_ids(stack: Stack) -> None:
    async with stack.running():
        both = [
            (await stack.approval(await stack.refund(thread=thread))).id
            for thread in ("t1", "t2")
        ]

        told = await answer(stack, "U0ANA", f"show {SAME}", CHANNEL)
        one = await answer(stack, "U0ANA", f"show {both[1]}", CHANNEL)

        assert told.startswith(f"2 approvals have the id `{SAME}`.")
        assert all(f"`{approval}`" in told for approval in both)
        assert one.startswith("⏳ *Approval needed*.")


@pytest.mark.usefixtures("same_short_id")
async def test_what_a_person_may_not_read_makes_no_id_ambiguous(stack: Stack) -> None:
    async with stack.running():
        secret = await stack.approval(await private_call(stack))
        open_ = await stack.approval(await stack.refund(thread="other"))
        assert short_id(secret.id) == short_id(open_.id)

        told = await answer(stack, "U0EVE", f"show {SAME}", CHANNEL)
        hidden = await answer(stack, "U0EVE", f"show {secret.id}", CHANNEL)

        assert "Tool: `process_refund`." in told
        assert "lonely" not in told
        assert "no such approval" in hidden


@pytest.mark.usefixtures("same_short_id")
async def test_another_tenants_approval_is_not_found(stack: Stack) -> None:
    stack.agents = AgentService(stack.store, lambda: stack.policy, tenant="other")
    async with stack.running():
        verdict = await stack.refund()

        short = await answer(stack, "U0ANA", f"show {SAME}", CHANNEL)
        whole = await answer(
            stack, "U0ANA", f"show {verdict.item_id.rpartition('.')[0]}", CHANNEL
        )

        assert "no such approval" in short
        assert "no such approval" in whole
