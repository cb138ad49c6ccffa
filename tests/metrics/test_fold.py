"""Each call counts once, under its tool, its tier, its day and its hour."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    BY_POLICY,
    EDITED,
    WAITED_MS,
    Event,
    EventName,
)
from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.report import (
    DECIDED,
    EXPORTED_S,
    OTHERS,
    Counts,
    DurationHistogram,
    Metrics,
    Outcome,
    Selection,
    Share,
    facts,
    outcome_of,
)
from keyturn.gateway.protocol.records import RunRef, Tier
from tests.levels import examples

N = EventName
NOON_MS = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def event(name: EventName, at_ms: int = NOON_MS, **facts: object) -> Event:
    known = {"tenant": "default", "agent": "support", "thread": "t1"}
    return Event.model_validate(known | {"name": name, "at_ms": at_ms} | facts)


def decided(
    name: EventName = N.ITEM_AUTHORIZED,
    waited_ms: int = 60_000,
    at_ms: int = NOON_MS,
    *,
    is_edited: bool = False,
    tool: str = "refund",
) -> Event:
    data = {WAITED_MS: str(waited_ms), **({EDITED: "yes"} if is_edited else {})}
    actor = "T0/U0ANA"
    return event(name, at_ms, tool=tool, tier="approve", actor=actor, data=data)


def folded(*events: Event, selected: Selection = report.EVERYTHING) -> Metrics:
    metrics = Metrics(selected)
    for one in events:
        metrics.add(one)
    return metrics


def test_a_question_is_no_call_and_its_run_asked_somebody() -> None:
    answered = event(N.ITEM_ANSWERED, item="ap_1.0", tool="ask_user")

    counted = folded(event(N.RUN_STARTED), event(N.APPROVAL_OPENED), answered)

    assert (counted.total, counted.tools) == (Counts(), {})
    assert [*counted.open_runs.values()] == [True]


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (event(N.CALL_RAN, tier="auto"), Outcome.AUTO),
        (event(N.ITEM_AUTHORIZED, tier="notify", actor=BY_POLICY), Outcome.AUTO),
        (decided(), Outcome.APPROVED),
        (decided(is_edited=True), Outcome.EDITED),
        (decided(N.ITEM_REJECTED), Outcome.REJECTED),
        (decided(N.ITEM_ANSWERED), Outcome.ANSWERED),
        (event(N.ITEM_EXPIRED), Outcome.EXPIRED),
        (event(N.ITEM_WITHDRAWN), Outcome.WITHDRAWN),
        (event(N.CALL_DENIED), Outcome.DENIED),
        (event(N.CALL_RETURNED), Outcome.RETURNED),
        # A released claim: there was no decision.
        (event(N.ITEM_AUTHORIZED), None),
        # One of two votes, and an edit that others have to approve.
        (event(N.ITEM_VOTED, actor="T0/U0ANA"), None),
        (event(N.ITEM_EDITED, actor="T0/U0ANA"), None),
        (event(N.CALLS_DECIDED, actor="T0/U0ANA"), None),
    ],
)
def test_an_event_names_the_answer(one: Event, outcome: Outcome | None) -> None:
    assert outcome_of(one) is outcome


def test_the_rates_are_of_calls_runs_and_decisions() -> None:
    ran = event(N.CALL_RAN, tool="look_up", tier="auto")
    metrics = folded(
        *[ran] * 6,
        event(N.CALL_FAILED, tool="look_up"),
        event(N.CALL_DENIED, tool="drop", tier="deny"),
        event(N.CALL_RETURNED, tool="refund", tier="approve"),
        decided(),
        decided(is_edited=True),
        decided(N.ITEM_REJECTED),
    )

    total = metrics.total
    # Six ran automatically, of which one failed; calls returned to the agent were not
    # evaluated.
    assert total.autonomous == Share(5, 10)
    assert total.corrected == Share(2, 3)
    assert metrics.tools["look_up"].autonomous == Share(5, 6)
    assert metrics.tiers["auto"].failed == 1


def test_a_run_that_asked_nobody_is_told_from_one_that_did() -> None:
    def run(thread: str, *names: EventName) -> list[Event]:
        return [event(name, thread=thread) for name in names]

    inside = event(
        N.APPROVAL_OPENED, agent="sub", nested_in=RunRef(agent="support", thread="t3")
    )
    metrics = folded(
        *run("t1", N.RUN_STARTED, N.APPROVAL_OPENED, N.RUN_FINISHED),
        *run("t2", N.RUN_STARTED, N.RUN_FINISHED),
        event(N.RUN_STARTED, thread="t3"),
        # Of an agent inside a tool: it is the outermost run that waits.
        inside,
        event(N.RUN_FINISHED, thread="t3"),
        event(N.RUN_STARTED, thread="t4"),
        # A notification requests nothing.
        event(N.APPROVAL_OPENED, thread="t4", approval="ap_1", tier="notify"),
        event(N.RUN_FINISHED, thread="t4"),
        # Began before the period, so it is unknown whether it had a request.
        event(N.RUN_FINISHED, thread="t5"),
    )

    assert metrics.total.autonomous_runs == Share(2, 4)


def test_a_run_that_began_before_the_period_counts_when_it_ends_in_it() -> None:
    before_ms = NOON_MS - HOUR_MS
    events = [
        event(N.RUN_STARTED, before_ms, thread="asked"),
        event(N.APPROVAL_OPENED, before_ms, thread="asked"),
        event(N.RUN_STARTED, before_ms, thread="alone"),
        event(N.RUN_STARTED, before_ms, thread="over"),
        event(N.RUN_FINISHED, before_ms, thread="over"),
        event(N.RUN_FINISHED, thread="asked"),
        event(N.RUN_FINISHED, thread="alone"),
    ]

    total = folded(*events, selected=Selection(since_ms=NOON_MS)).total

    assert total.autonomous_runs == Share(1, 2)


def test_a_call_asked_again_counts_once() -> None:
    let_run = event(N.ITEM_AUTHORIZED, tool="x", tier="notify", actor=BY_POLICY)
    lapsed = event(N.ITEM_LAPSED, tool="x", tier="notify", actor=BY_GATEWAY)

    total = folded(let_run, lapsed, decided()).total

    assert total.autonomous == Share(0, 1)
    assert total.unused_auto == 1
    # An approved and unused call is people's decision all the same.
    assert folded(decided(), lapsed.with_(tier="approve")).total.evaluated == 1


def test_days_are_those_of_the_zone() -> None:
    metrics = Metrics(zone=ZoneInfo("Asia/Kolkata"))
    metrics.add(decided(at_ms=NOON_MS + 8 * HOUR_MS))  # 20:00 UTC is 01:30 there

    assert list(metrics.days) == ["2026-11-24"]


@pytest.mark.parametrize("waited", ["", "-5", "soon", "9" * 40, "٣"])
def test_a_wait_that_is_no_time_counts_as_a_decision_alone(waited: str) -> None:
    one = decided().with_(data={WAITED_MS: waited} if waited else {})

    total = folded(one).total

    assert (total.among(*DECIDED), total.waits.count) == (1, 0)


@pytest.mark.parametrize(
    ("selected", "calls", "runs"),
    [
        (Selection(tool="refund"), 1, 0),
        (Selection(agent="other"), 0, 0),
        (Selection(since_ms=NOON_MS + 1), 0, 0),
        (Selection(since_ms=NOON_MS, until_ms=NOON_MS + 1), 3, 1),
    ],
)
def test_only_what_is_selected_counts(
    selected: Selection, calls: int, runs: int
) -> None:
    ran = event(N.CALL_RAN, tool="look_up", tier="auto")
    events = [event(N.RUN_STARTED), ran, ran, decided(), event(N.RUN_FINISHED)]

    total = folded(*events, selected=selected).total

    assert (total.evaluated, total.runs) == (calls, runs)


def test_memory_is_bounded_whatever_agents_call_their_tools() -> None:
    metrics = Metrics()
    for number in range(report.MAX_ROWS + 500):
        at_ms, tier = number * 86_400_000, f"tier_{number}"
        metrics.add(event(N.CALL_RAN, at_ms, tool=f"tool_{number}", tier=tier))
    for number in range(report.MAX_RUNS + 5):
        metrics.add(event(N.RUN_STARTED, thread=f"t{number}"))

    assert len(metrics.tools) == len(metrics.days) == report.MAX_ROWS + 1
    assert metrics.tools[OTHERS].evaluated == metrics.days[OTHERS].evaluated == 500
    assert list(metrics.tiers) == [OTHERS]
    assert len(metrics.open_runs) == report.MAX_RUNS


EVENTS = st.builds(
    event,
    st.sampled_from(list(EventName)),
    st.integers(NOON_MS - 9 * HOUR_MS, NOON_MS + 99 * HOUR_MS),
    tool=st.sampled_from(["refund", "look_up", "email"]),
    tier=st.sampled_from([*map(str, Tier), ""]),
    actor=st.sampled_from(["", BY_POLICY, BY_GATEWAY, "T0/U0ANA"]),
    thread=st.sampled_from(["t1", "t2"]),
    data=st.sampled_from([{}, {WAITED_MS: "5000"}, {WAITED_MS: "9000", EDITED: "y"}]),
)


def summed(rows: list[Counts]) -> tuple[Counter[Outcome], int, int, int]:
    calls: Counter[Outcome] = Counter()
    for row in rows:
        calls += row.calls
    waits = sum(row.waits.count for row in rows)
    return calls, sum(row.failed for row in rows), waits, sum(r.runs for r in rows)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_the_rows_of_each_table_add_up_to_the_total(events: list[Event]) -> None:
    metrics = folded(*events)

    whole = summed([metrics.total])
    assert summed([*metrics.days.values()]) == whole
    # A run has neither a tool nor a tier.
    for table in (metrics.tools, metrics.tiers, metrics.cells):
        assert summed([*table.values()])[:3] == whole[:3]


def test_a_run_of_which_only_the_end_was_read_is_told_apart() -> None:
    ended = event(EventName.RUN_FINISHED)

    total = folded(ended).total

    assert (total.runs, total.unknown_runs) == (0, 1)
    (told,) = [one for one in facts(folded(ended)) if one.name == "Runs"]
    assert "not known of 1 that began before" in told.said
    assert folded(event(EventName.RUN_STARTED), ended).total.unknown_runs == 0


times = st.one_of(st.integers(0, 60_000), st.integers(0, 30 * DAY_MS))


def counted(values: list[int]) -> DurationHistogram:
    durations = DurationHistogram()
    for value in values:
        durations.add(value)
    return durations


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(times, min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_3_percent_off_at_most(values: list[int], share: float) -> None:
    found = counted(values).quantile_ms(share)

    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert found is not None
    assert abs(found - exact) <= max(1000, 0.03 * exact)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(times))
def test_what_is_exported_is_counted_exactly(values: list[int]) -> None:
    exact = {at: sum(value <= 1000 * at for value in values) for at in EXPORTED_S}

    assert counted(values).up_to() == exact


def test_a_clock_that_went_back_gives_no_time_below_zero() -> None:
    durations = counted([-5])

    assert (durations.quantile_ms(0.5), durations.total_ms) == (0, 0)


def test_a_time_beyond_the_last_bucket_is_counted() -> None:
    year_ms = 365 * DAY_MS

    assert counted([1, year_ms]).quantile_ms(0.99) == year_ms


def test_a_million_times_take_no_more_room_than_a_thousand() -> None:
    durations = counted([7919 * n % (30 * DAY_MS) for n in range(100_000)])

    assert len(durations.buckets) < 400
    assert durations.count == 100_000


def test_a_decision_for_another_program_counts_neither_as_run_nor_as_failed() -> None:
    data = {"handed_to": "Claude Code"}
    events = [
        event(N.CALL_HANDED_OVER, tier="auto"),
        event(N.ITEM_AUTHORIZED, tier="notify", actor=BY_POLICY, data=data),
        event(N.ITEM_LAPSED, tier="notify", data=data),
        event(N.ITEM_AUTHORIZED, tier="approve", actor="T0/U0ANA", data=data),
        event(N.ITEM_HANDED_OVER, tier="approve", data=data),
        event(N.ITEM_NOT_TAKEN, tier="approve", data=data),
        event(N.ITEM_REPORTED, tier="approve", reason="failed", data=data),
    ]
    metrics = Metrics()
    for one in events:
        metrics.add(one)

    total = metrics.total
    assert total.calls == {Outcome.PASSED: 2, Outcome.APPROVED: 1}
    assert (total.autonomous.part, total.evaluated) == (0, 3)
    assert (total.failed, total.unused_auto) == (0, 0)
    assert total.handed == {"taken": 1, "not_taken": 1}
