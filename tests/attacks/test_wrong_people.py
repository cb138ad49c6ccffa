"""People without permission cannot decide, by any button, transport or timing."""

from __future__ import annotations

import itertools

import pytest

from keyturn.bot import reviewers
from keyturn.bot.ids import Action, View
from keyturn.bot.reviewers import FRESH_S
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Edit,
    Reconcile,
    Reviewer,
)
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import as_object
from tests.attacks.attacker import (
    click_payload,
    deliver,
    rejection_form,
    trace,
    value_of,
)
from tests.bot.bot_stack import TEAM, Stack

DECIDING = [
    *(Action.APPROVE, Action.EDIT, Action.REJECT, Action.RESPOND),
    *(Action.RECONCILE_EXECUTED, Action.RECONCILE_RERUN, Action.RECONCILE_SKIP),
    Action.RECONCILE_NOTE,
]
NOBODY = {
    "an outsider": "U0EVE",
    "of another role": "U0CHLOE",
    "the requester": "U0DAN",
    "a guest": "U0GUEST",
    "a bot": "U0KEYTURN",
    "a stranger": "U0STRANGER",
    "somebody who left": "U0GONE",
    "nobody Slack knows": "U0NONE",
    "no id at all": "ana",
    "Slack itself": "USLACKBOT",
}


@pytest.mark.slow
@pytest.mark.parametrize("who", NOBODY)
async def test_no_button_works_outside_the_role(stack: Stack, who: str) -> None:
    async with stack.running():
        waiting, doubtful = await stack.refund(), await stack.refund(thread="t2")
        await in_doubt(stack, doubtful)
        for verdict, action in itertools.product((waiting, doubtful), DECIDING):
            card = await stack.card(verdict)
            before = await trace(stack, verdict)
            value = value_of(stack, await stack.approval(verdict), action)
            click = click_payload(card["ts"], action, value, user=NOBODY[who])

            status, _ = await deliver(stack, click)

            assert (status, await trace(stack, verdict)) == (200, before), action
        opened = [
            as_object(call.arguments["view"])["callback_id"]
            for call in stack.sandbox.calls
            if call.method == "views.open"
        ]
        # The requester may take a call back, and nothing else.
        may_open = {View.REJECT} if who == "the requester" else set[str]()
        assert set(map(str, opened)) == may_open


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["revoked", "left", "silent", "slow", "lost"])
async def test_who_lost_the_role_with_the_form_open_is_refused(
    stack: Stack, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {"amount": 1}))
        form = await rejection_form(stack, verdict)
        monkeypatch.setattr(reviewers, "LOOKUP_TIMEOUT_S", 1.0)
        before = await trace(stack, verdict)
        control = stack.sandbox.control
        if spoil == "revoked":
            control.set_group("S0SUPPORT", ["U0BEN"])
        elif spoil == "left":
            control.deactivate("U0ANA")
        else:
            fault = {"silent": "http_500", "slow": "slow", "lost": "reset"}[spoil]
            control.fault(fault, "users.info", calls=99, seconds=9)
            control.fault(fault, "usergroups.users.list", calls=99, seconds=9)

        control.advance(2 * FRESH_S + 1)

        status, _ = await deliver(stack, form)

        assert (status, await trace(stack, verdict)) == (200, before)


async def test_whose_edit_raised_a_call_cannot_have_it_run_again(stack: Stack) -> None:
    verdict = await stack.refund()
    stack.put_policy(("process_refund:\n    tier: approve", ESCALATED))
    change = Edit(args={"amount": 500, "order_id": "78291"})
    click = await click_on(stack, verdict)
    assert (await stack.reviews.decide(click, change, member("U0BEN"))).kind == "voted"
    for user, group in (("U0ANA", "S0SUPPORT"), ("U0CHLOE", "S0SENIOR")):
        click = await click_on(stack, verdict)
        await stack.reviews.decide(click, Approve(), member(user, group))
    await set_state(stack, verdict, ItemState.IN_DOUBT)

    outcome = await stack.reviews.decide(
        await click_on(stack, verdict),
        Reconcile(finding=Finding.RERUN),
        member("U0BEN"),
    )

    assert outcome.kind == "forbidden"


ESCALATED = "process_refund:\n    tier: escalate"


def member(user: str, *groups: str) -> Reviewer:
    return Reviewer(
        team=TEAM,
        user=user,
        usergroups=frozenset(groups or ("S0SUPPORT",)),
        account=AccountKind.MEMBER,
    )


async def click_on(stack: Stack, verdict: Verdict) -> Click:
    approval = await stack.approval(verdict)
    return Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.items[0].action_hash,
    )


async def set_state(stack: Stack, verdict: Verdict, state: ItemState) -> None:
    approval = await stack.approval(verdict)
    head = stack.keys.head(approval.id)
    await stack.store.conn.command("HSET", head, "0:s", state.value)


async def in_doubt(stack: Stack, verdict: Verdict) -> None:
    """Interrupt an authorized call while it runs."""
    click = await click_on(stack, verdict)
    assert (await stack.reviews.decide(click, Approve(), member("U0BEN"))).kind
    await set_state(stack, verdict, ItemState.IN_DOUBT)
