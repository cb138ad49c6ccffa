"""Past calls are evaluated as they came: in their order, with their totals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyturn.gateway.audit_export import read_export
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import Replayed, Row, replay
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier

START = 1_782_900_000_000
MINUTE = 60_000
POLICY = load_policy(
    """\
version: 1
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 1h}
tools:
  look_up: {tier: notify}
  refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.refunded > 100, because: over 100}
      - {to: deny, when: args.amount > 900, because: over 900}
  odd:
    tier: auto
    raise:
      - {to: approve, when: recent.failures_1h > 1, because: it fails}
      - {to: escalate, when: recent.rejections_in_row > 1, because: unwanted}
      - {to: deny, when: recent.requests_10m > 3, because: too many}
""",
    "p.yml",
)


def row(name: str, minute: float, item: str = "", **more: Any) -> dict[str, Any]:
    approval = item.partition(".")[0]
    at_ms = START + int(minute * MINUTE)
    base = {"name": name, "at_ms": at_ms, "agent": "a", "tenant": "t"}
    return {**base, "item": item, "approval": approval, **more}


def opened(
    minute: float, item: str, amount: float | None, tier: str = "approve"
) -> Any:
    args = {"customer": "C1", "amount": amount}
    call = {} if amount is None else {"call": {"args": args}}
    return row("item.voted", minute, item, tool="refund", tier=tier, **call)


RAN = row("call.ran", 9, tool="odd", tier="auto", call={"args": {}})


def evaluated(*rows: dict[str, Any], policy: Policy = POLICY) -> list[Replayed]:
    text = "\n".join(json.dumps(one) for one in rows)
    return replay(policy, read_export(text.split("\n"), "audit.jsonl", Row))


def tiers(*rows: dict[str, Any], policy: Policy = POLICY) -> list[Tier]:
    return [one.now for one in evaluated(*rows, policy=policy)]


def test_a_call_that_ran_is_compared_with_what_it_would_need_now() -> None:
    (one,) = evaluated(
        row("call.ran", 0, tool="look_up", tier="auto", call={"args": {}})
    )

    assert (one.was, one.now, one.is_changed) == (Tier.AUTO, Tier.NOTIFY, True)
    assert one.is_complete


def test_totals_are_added_up_from_the_export_itself() -> None:
    found = tiers(
        opened(0, "ap1.0", 60), opened(10, "ap2.0", 60), opened(65, "ap3.0", 60)
    )

    assert found == [Tier.APPROVE, Tier.ESCALATE, Tier.ESCALATE]
    assert tiers(opened(0, "ap1.0", 60), opened(61, "ap2.0", 60))[1] is Tier.APPROVE


@pytest.mark.parametrize(
    "name", ["item.rejected", "item.expired", "item.withdrawn", "item.superseded"]
)
def test_a_call_that_was_refused_leaves_the_totals(name: str) -> None:
    found = tiers(opened(0, "ap1.0", 60), row(name, 5, "ap1.0"), opened(9, "ap2.0", 60))

    assert found == [Tier.APPROVE, Tier.APPROVE]


def test_a_call_that_would_be_denied_now_does_not_count() -> None:
    found = tiers(opened(0, "ap1.0", 901), opened(1, "ap2.0", 60))

    assert found == [Tier.DENY, Tier.APPROVE]


def test_rows_may_stand_in_any_order_and_an_item_counts_once() -> None:
    found = evaluated(
        opened(10, "ap2.0", 60),
        opened(0, "ap1.0", 60),
        row("item.authorized", 12, "ap2.0", tool="refund", tier="escalate"),
    )

    assert [one.item for one in found] == ["ap1.0", "ap2.0"]
    assert [one.now for one in found] == [Tier.APPROVE, Tier.ESCALATE]


def test_a_call_is_evaluated_when_its_card_was_opened() -> None:
    (one,) = evaluated(
        row("approval.opened", 0) | {"approval": "ap1"}, opened(50, "ap1.0", 1)
    )

    assert one.at_ms == START


def test_arguments_may_stand_in_a_later_row_of_the_item() -> None:
    found = evaluated(
        row("item.voted", 0, "ap1.0", tool="refund", tier="approve"),
        opened(5, "ap1.0", 950),
    )

    assert [one.now for one in found] == [Tier.DENY]


def test_an_edit_makes_the_votes_before_it_void() -> None:
    policy = load_policy(
        """\
version: 1
roles: {support: {users: [U0ANA]}, senior: {users: [U0LEAD]}}
tools: {refund: {tier: escalate, needs: [support, senior]}}
""",
        "p.yml",
    )
    ana = opened(0, "ap1.0", 1) | {"actor": "U0ANA", "roles": ["support"]}
    edited = row("item.edited", 1, "ap1.0")
    lead = row("item.authorized", 2, "ap1.0") | {"actor": "U0LEAD", "roles": ["senior"]}

    def lacking(*rows: dict[str, Any]) -> dict[str, int]:
        return evaluated(*rows, policy=policy)[0].lacking

    assert lacking(ana, lead) == {}
    assert lacking(ana, edited, lead) == {"support or senior": 1}


def test_failures_rejections_and_requests_are_facts_of_the_replay() -> None:
    failed = [row("item.failed", n, f"f{n}.0") for n in (1, 2)]
    rejected = [row("item.rejected", n, f"r{n}.0") for n in (1, 2)]
    asked = [opened(n, f"ap{n}.0", 1) for n in (1, 2, 3)]

    assert tiers(RAN) == [Tier.AUTO]
    assert tiers(*failed, RAN) == [Tier.APPROVE]
    assert tiers(*rejected, RAN) == [Tier.ESCALATE]
    assert tiers(*rejected, row("item.authorized", 3, "x.0"), RAN) == [Tier.AUTO]
    assert tiers(*asked, RAN)[-1] is Tier.DENY


def test_a_gesture_on_several_calls_counts_once_for_each_agent() -> None:
    member = {"data": {"batch": "sha256:1"}}
    no = [row("item.rejected", 2, f"n{n}.0", **member) for n in range(3)]
    yes = row("item.authorized", 2, "y.0", actor="T0/U0ANA", **member)
    elsewhere = [one | {"agent": "b"} for one in no]
    before = row("item.rejected", 1, "r.0")

    assert tiers(*no, RAN) == [Tier.AUTO]
    assert tiers(before, *no, RAN) == [Tier.ESCALATE]
    assert tiers(*no, row("item.rejected", 3, "l.0"), RAN) == [Tier.ESCALATE]
    assert tiers(before, *elsewhere, RAN) == [Tier.AUTO]
    # An approval by the same gesture ends the row, in any order.
    assert tiers(before, yes, *no, RAN) == [Tier.AUTO]
    assert tiers(before, *no, yes, RAN) == [Tier.AUTO]


def test_without_arguments_only_the_listed_tier_is_compared() -> None:
    (one,) = evaluated(opened(0, "ap1.0", None, tier="escalate"))

    assert (one.was, one.now, one.is_complete) == (Tier.ESCALATE, Tier.APPROVE, False)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "audit.jsonl:3: This is not a row of JSON"),
        ('{"at_ms": 1}', "audit.jsonl:3: 'name' is missing."),
        ('{"name": "call.ran", "at_ms": "x"}', "audit.jsonl:3: 'at_ms'"),
    ],
)
def test_a_line_that_is_no_row_is_named(line: str, problem: str) -> None:
    good = json.dumps(row("run.started", 0))

    with pytest.raises(SettingsError) as caught:
        list(read_export([good, "", line], "audit.jsonl", Row))

    assert problem in str(caught.value)


def test_a_call_that_left_a_total_by_age_gives_nothing_back_later() -> None:
    assert tiers(
        opened(0, "ap1.0", 60),
        opened(70, "ap2.0", 60),
        row("item.rejected", 75, "ap1.0"),
        opened(80, "ap3.0", 60),
    ) == [Tier.APPROVE, Tier.APPROVE, Tier.ESCALATE]


ASKED = load_policy(
    """\
version: 1
windows:
  asked:
    {tools: [refund], by: args.customer, sum: 1, counts: requests, within: 1h}
tools:
  refund:
    raise:
      - {to: deny, when: windows.asked > 2, because: the third request}
""",
    "p.yml",
)


def test_requests_count_whatever_became_of_them() -> None:
    rows = [
        opened(0, "ap1.0", 1),
        row("item.rejected", 1, "ap1.0"),
        opened(2, "ap2.0", 1),
        row("item.expired", 3, "ap2.0"),
        opened(4, "ap3.0", 1),
        opened(5, "ap4.0", 1),
        opened(62.5, "ap5.0", 1),
        opened(64.5, "ap6.0", 1),
        opened(66, "ap7.0", 1),
    ]

    found = tiers(*rows, policy=ASKED)

    # The third and the fourth are refused and count as requests all the same, until
    # each has its hour behind it.
    asks, denied = Tier.APPROVE, Tier.DENY
    assert found == [asks, asks, denied, denied, denied, denied, denied]


REPEATED = load_policy(
    """\
version: 1
tools:
  look_up:
    tier: auto
    raise: [{to: approve, when: recent.same_done_24h > 0, because: again}]
  refund:
    tier: approve
    same_by: args.customer
    raise:
      - {to: escalate, when: recent.same_done_24h > 0, because: done before}
      - {to: deny, when: recent.same_rejected_24h > 1, because: unwanted}
""",
    "p.yml",
)


@pytest.mark.parametrize(
    ("ends", "tier"),
    [
        (["item.executed"], Tier.ESCALATE),
        (["item.authorized", "item.reopened"], Tier.APPROVE),
        (["item.executed", "item.failed"], Tier.APPROVE),
        (["item.rejected"], Tier.APPROVE),
    ],
)
def test_the_log_says_how_the_same_call_ended(ends: list[str], tier: Tier) -> None:
    rows = [opened(0, "ap_1.0", 10)]
    rows += [row(end, 1, "ap_1.0") for end in ends]
    rows += [opened(2, "ap_2.0", 20), opened(24 * 60 + 2, "ap_3.0", 30)]

    assert tiers(*rows, policy=REPEATED) == [Tier.APPROVE, tier, Tier.APPROVE]


def test_calls_that_ran_without_people_are_counted_as_they_came() -> None:
    call: Any = {"tool": "look_up", "tier": "auto", "call": {"args": {"order": 7}}}
    rows = [row("call.ran", minute, **call) for minute in (0, 1, 24 * 60 + 2)]

    assert tiers(*rows, policy=REPEATED) == [Tier.AUTO, Tier.APPROVE, Tier.AUTO]


def test_a_gesture_that_only_voted_neither_counts_nor_ends_rejections() -> None:
    rejected = [row("item.rejected", n, f"r{n}.0") for n in (1, 2)]
    voted = {"approved": "0-1", "waiting": "0-1"}
    gesture = row("approval.decided", 3, approval="b", data=voted)

    assert tiers(*rejected, gesture, RAN) == [Tier.ESCALATE]
    assert tiers(*rejected[1:], gesture, RAN) == [Tier.AUTO]


def test_a_call_that_was_denied_is_evaluated_and_did_not_run() -> None:
    denied = row("call.denied", 1, tool="refund", tier="deny")
    denied["call"] = {"args": {"customer": "C1", "amount": 10}}

    (found,) = evaluated(denied)

    assert (found.was, found.now) == (Tier.DENY, Tier.APPROVE)
