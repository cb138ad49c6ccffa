"""The card of an executed call asks another person whether it was right."""

from __future__ import annotations

import json

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.quality_checks import is_drawn
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, has_button
from tests.conftest import eventually

CHECKED = load_policy(
    f"{POLICY}spot_checks: {{share: 99%, of: [support]}}\n", "policy.yml"
)


async def drawn(stack: Stack) -> Verdict:
    """Ask for a refund that a check is drawn of."""
    stack.policy = CHECKED
    for number in range(20):
        verdict = await stack.refund(thread=f"t{number}", order_id=f"{number}")
        item = (await stack.approval(verdict)).items[approval_of(verdict.item_id)[1]]
        if is_drawn(item, 99):
            return verdict
    raise AssertionError("20 calls in a row were not drawn")


async def test_only_a_colleague_answers_a_spot_check(live: Stack) -> None:
    verdict = await drawn(live)
    ts = str((await live.card(verdict))["ts"])
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await live.execute(verdict)
    card = await live.card(verdict, lambda m: has_button(m, Action.CHECK_WRONG))

    async def is_asked() -> bool:
        notes = json.dumps(await live.notes(card))
        is_mentioned = "<!subteam^S0SUPPORT>" in notes
        return is_mentioned and "was this right? Please answer" in notes

    await eventually(is_asked)
    await live.actor("U0ANA").click(CHANNEL, ts, Action.CHECK_RIGHT)
    await live.told("U0ANA", "Someone else has to check")
    await live.actor("U0BEN").click(CHANNEL, ts, Action.CHECK_WRONG)

    await live.told("U0BEN", "Recorded, thank you.")
    card = await live.card(
        verdict, lambda m: "it was *wrong*" in json.dumps(m["blocks"])
    )
    assert not has_button(card, Action.CHECK_WRONG)
