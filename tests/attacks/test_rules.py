"""The stricter of the frozen and the current policy holds, by every way in."""

from __future__ import annotations

import json

import pytest

from tests.attacks.attacker import (
    changed,
    click_payload,
    deliver,
    deliver_bytes,
    trace,
    value_of,
)
from tests.attacks.test_wrong_people import click_on, has_votes, member, set_state
from tests.bot.bot_house import CHANNEL, POLICY, TEAM, House
from tests.conftest import eventually
from twokey.bot.ids import Action
from twokey.gateway.approvals.decisions import Approve, Edit, Reconcile
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.service.reviews import ReviewService

RULE = "process_refund:\n    tier: approve"
NARROW = "no_edits: {tier: approve, allow: [approve, reject]}"


def tightened(rule: str, *, old: str = RULE) -> str:
    """Return the policy with the rule for one tool replaced."""
    assert old in POLICY
    return POLICY.replace(old, rule)


def enforce(house: House, text: str) -> None:
    house.policy = load_policy(text, "policy.yml")


async def test_what_the_policy_denies_by_now_is_not_approved(house: House) -> None:
    verdict = await house.refund()
    enforce(house, tightened("process_refund:\n    tier: deny"))

    outcome = await house.reviews.decide(
        await click_on(house, verdict), Approve(), member("U0ANA")
    )

    assert outcome.kind == "forbidden"
    assert (await house.approval(verdict)).items[0].is_pending


async def test_what_the_policy_denies_by_now_is_not_run_again(house: House) -> None:
    verdict = await house.refund()
    click = await click_on(house, verdict)
    await house.reviews.decide(click, Approve(), member("U0ANA"))
    await set_state(house, verdict, ItemState.IN_DOUBT)
    enforce(house, tightened("process_refund:\n    tier: deny"))

    await house.reviews.decide(
        await click_on(house, verdict),
        Reconcile(finding=Finding.RERUN),
        member("U0BEN"),
    )

    item = (await house.approval(verdict)).items[0]
    assert item.state is not ItemState.AUTHORIZED


async def test_a_decision_that_the_policy_forbids_by_now_does_not_count(
    house: House,
) -> None:
    verdict = await house.refund()
    enforce(house, tightened("process_refund:\n    tier: approve\n    allow: [reject]"))

    await house.reviews.decide(
        await click_on(house, verdict), Approve(), member("U0ANA")
    )

    assert (await house.approval(verdict)).items[0].is_pending


async def test_an_edit_without_a_change_does_not_approve_where_nobody_may(
    house: House,
) -> None:
    enforce(
        house, tightened("no_edits: {tier: approve, allow: [edit, reject]}", old=NARROW)
    )
    (verdict,) = await house.submit(("no_edits", {"a": 1}))

    await house.reviews.decide(
        await click_on(house, verdict), Edit(args={"a": 1}), member("U0ANA")
    )

    assert (await house.approval(verdict)).items[0].is_pending


async def test_a_reason_that_the_policy_wants_is_wanted_by_the_centre(
    house: House,
) -> None:
    rule = "no_edits: {tier: approve, requires_reason: true}"
    enforce(house, tightened(rule, old=NARROW))
    (verdict,) = await house.submit(("no_edits", {"a": 1}))

    outcome = await house.reviews.decide(
        await click_on(house, verdict), Edit(args={"a": 2}), member("U0ANA")
    )

    assert outcome.kind == "invalid"


async def test_who_the_policy_wants_by_now_may_come_first(house: House) -> None:
    async with house.running():
        verdict = await house.refund()
        ts = str((await house.card(verdict))["ts"])
        enforce(
            house,
            tightened("process_refund:\n    tier: approve\n    reviewers: senior"),
        )

        await house.actor("U0CHLOE").click(CHANNEL, ts, Action.APPROVE)

        await eventually(lambda: has_votes(house, verdict, 1), within_s=2)


async def test_a_click_from_nowhere_decides_nothing_and_makes_no_place(
    house: House,
) -> None:
    """A click without channel and message becomes the usable copy of the card."""
    house.sandbox.faults.plan("http_500", "chat.postMessage", calls=99)
    async with house.running():
        verdict = await house.refund()
        before = await trace(house, verdict)
        value = value_of(house, await house.approval(verdict), Action.APPROVE)
        click = click_payload("", Action.APPROVE, value)
        for place in ("channel", "container"):
            click = changed(click, place, ...)

        await deliver(house, click)

        assert await trace(house, verdict) == before


async def test_a_request_that_could_not_be_kept_is_kept_when_slack_repeats_it(
    house: House, monkeypatch: pytest.MonkeyPatch
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
    async with house.running():
        with monkeypatch.context() as outage:
            outage.setattr(ReviewService, "ask_agent", away)
            assert (await deliver_bytes(house, body, kind))[0] == 503

        await house.told("U0DAN", "Slack repeats your message")

        # Within the same second Slack signs the repeated delivery alike, then anew.
        for sent in (body, body + b" ", body + b"  "):
            assert (await deliver_bytes(house, sent, kind))[0] == 200

        assert await house.store.queue(house.keys).depth() == 1
