"""A call that runs unasked stands on a notice, in the step that let it run."""

from __future__ import annotations

import asyncio

import pytest

from tests.lifetimes import listed
from tests.service.harness import DAN, POLICY, ServiceHarness
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.notice import CallState, Notice, notice_of
from twokey.gateway.errors import UnreadableRecord
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person, Result
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import CallEnd, TurnRef, Verdict
from twokey.gateway.store.keys import RETENTION
from twokey.gateway.store.outbox import audit_entries
from twokey.gateway.store.store import Store

NOTIFYING = (
    POLICY
    + """
  post: {tier: notify, redact: [args.key], description: "Post {args.text}"}
  tell: {tier: notify, channel: C0OTHER}
"""
)
KIM = Person(team="T0", user="U0KIM")


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(NOTIFYING, "policy.yml"))


async def notice(harness: ServiceHarness, verdict: Verdict) -> Notice:
    found = await harness.reviews.notices.read(notice_of(verdict.notice)[0])
    assert found
    return found


async def told(harness: ServiceHarness, *names: EventName) -> list[Event]:
    keys = harness.store.keys_of_tenant("default")
    return [e for e in await audit_entries(harness.store.conn, keys) if e.name in names]


def end_of(ref: TurnRef, verdict: Verdict, *, ok: bool = True) -> CallEnd:
    return CallEnd(
        notice=verdict.notice,
        ref=ref,
        tool=verdict.tool,
        tool_call_id=verdict.tool_call_id,
        result=Result(ok=ok, summary="posted"),
    )


async def test_the_calls_of_a_turn_share_a_notice_in_each_channel(
    harness: ServiceHarness,
) -> None:
    _, (look, post, tell, again, hold) = await harness.submit(
        ("look_up_order", {}),
        ("post", {"text": "a", "key": "k"}),
        ("tell", {}),
        ("post", {"text": "b"}),
        ("send_email", {}),
    )

    first, other = await notice(harness, post), await notice(harness, tell)

    assert (look.notice, hold.notice) == ("", "")
    assert notice_of(again.notice) == (first.id, 1)
    assert [call.args for call in first.calls] == [
        {"text": "a", "key": "k"},
        {"text": "b"},
    ]
    assert (first.channel, other.channel) == ("C0APPROVALS", "C0OTHER")
    assert (first.requester, first.calls[0].redact) == (DAN, ("args.key",))
    assert first.calls[0].description == "Post a"
    assert first.calls[0].state is CallState.STARTED
    ran = await told(harness, EventName.CALL_RAN)
    assert [event.notice for event in ran] == ["", first.id, other.id, first.id]
    assert first.created_at_ms == ran[1].at_ms


async def test_a_turn_that_is_submitted_again_has_no_second_notice(
    harness: ServiceHarness,
) -> None:
    call: tuple[str, JsonObject] = ("post", {"text": "a"})
    _, (first,) = await harness.submit(call, message_id="m")

    _, (second,) = await harness.submit(call, message_id="m")

    assert second == first
    assert len(await told(harness, EventName.CALL_RAN)) == 1


async def test_a_call_that_does_not_run_is_on_no_notice(
    harness: ServiceHarness,
) -> None:
    _, verdicts = await harness.submit(("drop_table", {}), ("process_refund", {}))

    assert [verdict.notice for verdict in verdicts] == ["", ""]
    names = await harness.store.conn.command("KEYS", "*:n:nt_*")
    assert listed(names) == []


@pytest.mark.parametrize("ok", [True, False])
async def test_how_a_call_ended_is_kept_and_announced_once(
    harness: ServiceHarness, *, ok: bool
) -> None:
    ref, (verdict,) = await harness.submit(("post", {"text": "a"}))
    name = EventName.CALL_EXECUTED if ok else EventName.CALL_FAILED

    await asyncio.gather(
        *(harness.agents.ended(end_of(ref, verdict, ok=ok)) for _ in range(5))
    )

    found = await notice(harness, verdict)
    state = CallState.EXECUTED if ok else CallState.FAILED
    assert (found.calls[0].state, found.calls[0].summary) == (state, "posted")
    assert found.rev == 2
    (event,) = await told(harness, EventName.CALL_EXECUTED, EventName.CALL_FAILED)
    assert (event.name, event.notice, event.item) == (name, found.id, verdict.notice)
    assert found.calls[0].changed_at_ms == event.at_ms


async def test_the_newest_end_counts(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(("post", {"text": "a"}))
    await harness.agents.ended(end_of(ref, verdict, ok=False))

    await harness.agents.ended(end_of(ref, verdict))

    assert (await notice(harness, verdict)).calls[0].state is CallState.EXECUTED


@pytest.mark.parametrize(
    "changes",
    [
        {"notice": "nt_s0_" + "0" * 32 + ".0"},
        {"notice": "ap_s0_" + "0" * 32 + ".0"},
        {"notice": "junk"},
        {"tool": "tell"},
        {"tool_call_id": "c1"},
        {"ref": TurnRef(agent="support", thread="other", message_id="m0")},
        {"ref": TurnRef(agent="billing", thread="t1", message_id="m0")},
    ],
    ids=str,
)
async def test_the_end_of_another_call_changes_nothing(
    harness: ServiceHarness, changes: dict[str, object]
) -> None:
    ref, (verdict,) = await harness.submit(("post", {"text": "a"}))

    await harness.agents.ended(end_of(ref, verdict).with_(**changes))

    assert (await notice(harness, verdict)).rev == 1


async def test_a_row_that_is_not_there_ends_nothing(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(("post", {"text": "a"}))
    beyond = verdict.notice.removesuffix("0") + "1"

    await harness.agents.ended(end_of(ref, verdict).with_(notice=beyond))

    assert (await notice(harness, verdict)).rev == 1


async def test_each_person_reports_a_notice_once(harness: ServiceHarness) -> None:
    _, (verdict,) = await harness.submit(("post", {"text": "a"}))
    before = await notice(harness, verdict)

    first = await harness.reviews.notices.report(before, KIM, "wrong channel")
    again = await harness.reviews.notices.report(before, KIM, "really")
    await harness.reviews.notices.report(before, DAN, "")

    after = await notice(harness, verdict)
    assert (first, again) == (True, False)
    # Two within one millisecond have no order of time, and then go by user.
    assert {one.by.user: one.text for one in after.remarks} == {
        "U0KIM": "wrong channel",
        "U0DAN": "",
    }
    kept = [(one.at_ms, one.by.user) for one in after.remarks]
    assert kept == sorted(kept)
    at_ms = {one.by.user: one.at_ms for one in after.remarks}
    event, _ = await told(harness, EventName.NOTICE_REPORTED)
    assert (event.actor, event.reason) == ("T0/U0KIM", "wrong channel")
    assert (event.notice, event.at_ms) == (after.id, at_ms["U0KIM"])


async def test_a_notice_is_kept_for_as_long_as_an_approval(
    harness: ServiceHarness,
) -> None:
    _, (verdict,) = await harness.submit(("post", {"text": "a"}))
    keys = harness.store.keys_of_tenant("default")

    left = await harness.store.conn.command(
        "PTTL", keys.notice(notice_of(verdict.notice)[0])
    )

    assert isinstance(left, int)
    assert 0 < left <= RETENTION.total_seconds() * 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [("frozen", "{}"), ("frozen", "junk"), ("0", "[1]"), ("rev", "x"), ("by:x", "{}")],
)
async def test_a_notice_that_somebody_else_wrote_is_not_believed(
    harness: ServiceHarness, field: str, value: str
) -> None:
    _, (verdict,) = await harness.submit(("post", {"text": "a"}))
    keys, name = harness.store.keys_of_tenant("default"), notice_of(verdict.notice)[0]
    await harness.store.conn.command("HSET", keys.notice(name), field, value)

    with pytest.raises(UnreadableRecord, match=name):
        await harness.reviews.notices.read(name)


async def test_a_notice_under_the_id_of_another_is_not_believed(
    harness: ServiceHarness,
) -> None:
    _, (verdict,) = await harness.submit(("post", {"text": "a"}))
    keys, name = harness.store.keys_of_tenant("default"), notice_of(verdict.notice)[0]
    other = name[:-1] + ("0" if name[-1] != "0" else "1")
    await harness.store.conn.command("RENAME", keys.notice(name), keys.notice(other))

    with pytest.raises(UnreadableRecord, match=other):
        await harness.reviews.notices.read(other)
