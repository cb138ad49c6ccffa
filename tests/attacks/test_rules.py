"""The stricter of the pinned and the current policy applies, on every path."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Approve, Edit, Reconcile
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.service.reviews import ReviewService
from tests.attacks.attacker import (
    changed,
    click_payload,
    deliver,
    deliver_bytes,
    trace,
    value_of,
)
from tests.attacks.test_wrong_people import click_on, has_votes, member, set_state
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack
from tests.conftest import eventually

RULE = "process_refund:\n    tier: approve"
NARROW = "no_edits: {tier: approve, allow: [approve, reject]}"


def tightened(rule: str, *, old: str = RULE) -> str:
    """Return the policy with the rule for one tool replaced."""
    assert old in POLICY
    return POLICY.replace(old, rule)


def enforce(stack: Stack, text: str) -> None:
    stack.policy = load_policy(text, "policy.yml")


async def test_what_the_current_policy_denies_is_not_approved(stack: Stack) -> None:
    verdict = await stack.refund()
    enforce(stack, tightened("process_refund:\n    tier: deny"))

    outcome = await stack.reviews.decide(
        await click_on(stack, verdict), Approve(), member("U0ANA")
    )

    assert outcome.kind == "forbidden"
    assert (await stack.approval(verdict)).items[0].is_pending


async def test_what_the_current_policy_denies_is_not_run_again(stack: Stack) -> None:
    verdict = await stack.refund()
    click = await click_on(stack, verdict)
    await stack.reviews.decide(click, Approve(), member("U0ANA"))
    await set_state(stack, verdict, ItemState.IN_DOUBT)
    enforce(stack, tightened("process_refund:\n    tier: deny"))

    await stack.reviews.decide(
        await click_on(stack, verdict),
        Reconcile(finding=Finding.RERUN),
        member("U0BEN"),
    )

    item = (await stack.approval(verdict)).items[0]
    assert item.state is not ItemState.AUTHORIZED


async def test_a_decision_that_the_current_policy_forbids_does_not_count(
    stack: Stack,
) -> None:
    verdict = await stack.refund()
    enforce(stack, tightened("process_refund:\n    tier: approve\n    allow: [reject]"))

    await stack.reviews.decide(
        await click_on(stack, verdict), Approve(), member("U0ANA")
    )

    assert (await stack.approval(verdict)).items[0].is_pending


async def test_an_edit_without_a_change_does_not_approve_where_nobody_may(
    stack: Stack,
) -> None:
    enforce(
        stack, tightened("no_edits: {tier: approve, allow: [edit, reject]}", old=NARROW)
    )
    (verdict,) = await stack.submit(("no_edits", {"a": 1}))

    await stack.reviews.decide(
        await click_on(stack, verdict), Edit(args={"a": 1}), member("U0ANA")
    )

    assert (await stack.approval(verdict)).items[0].is_pending


async def test_a_reason_that_the_policy_wants_is_wanted_by_the_centre(
    stack: Stack,
) -> None:
    rule = "no_edits: {tier: approve, requires_reason: true}"
    enforce(stack, tightened(rule, old=NARROW))
    (verdict,) = await stack.submit(("no_edits", {"a": 1}))

    outcome = await stack.reviews.decide(
        await click_on(stack, verdict), Edit(args={"a": 2}), member("U0ANA")
    )

    assert outcome.kind == "invalid"


async def test_who_the_current_policy_wants_may_come_first(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        ts = str((await stack.card(verdict))["ts"])
        enforce(
            stack,
            tightened("process_refund:\n    tier: approve\n    reviewers: senior"),
        )

        await stack.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE)

        await eventually(lambda: has_votes(stack, verdict, 1))


async def test_a_click_from_nowhere_decides_nothing_and_makes_no_place(
    stack: Stack,
) -> None:
    """A click without channel and message becomes the usable copy of the card."""
    stack.sandbox.faults.plan("http_500", "chat.postMessage", calls=99)
    async with stack.running():
        verdict = await stack.refund()
        before = await trace(stack, verdict)
        value = value_of(stack, await stack.approval(verdict), Action.APPROVE)
        click = click_payload("", Action.APPROVE, value)
        for place in ("channel", "container"):
            click = changed(click, place, ...)

        await deliver(stack, click)

        assert await trace(stack, verdict) == before


async def test_a_request_that_could_not_be_kept_is_kept_when_slack_repeats_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store does not answer.")

    event = {
        "type": "event_callback",
        "team_id": TEAM,
        "event_id": "Ev0",
        "event": {
            "type": "app_mention",
            "user": "U0DAN",
            "text": "refund order 78291",
            "channel": CHANNEL,
            "ts": "1.1",
        },
    }
    body, kind = json.dumps(event).encode(), "application/json"
    async with stack.running():
        with monkeypatch.context() as outage:
            outage.setattr(ReviewService, "ask_agent", away)
            assert (await deliver_bytes(stack, body, kind))[0] == 503

        await stack.told("U0DAN", "Slack repeats your message")

        # Within the same second Slack signs the repeated delivery alike, then anew.
        for sent in (body, body + b" ", body + b"  "):
            assert (await deliver_bytes(stack, sent, kind))[0] == 200

        assert await stack.store.queue(stack.keys).depth() == 1
