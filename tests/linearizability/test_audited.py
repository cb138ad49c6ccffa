"""The audit log compared with people's replies, and the time line of an approval."""

from __future__ import annotations

from pathlib import Path

from tests.linearizability.audited import Death, Moment, contradictions, timelines
from tests.linearizability.history import Operation
from tests.linearizability.reconciliation import reconciled
from tests.linearizability.recorded import Recorded, kept

TOLD = Operation("a", "click", ("U0ANA",), 1, 2, "decided")
OPENED = Moment("a", "approval.opened", 1000)
AUTHORIZED = Moment("a", "item.authorized", 1400)
LAPSED = Moment("a", "item.lapsed", 15000)


def test_a_decision_that_people_were_told_of_is_in_the_log_once() -> None:
    accounts = reconciled([TOLD], {"a": "t"})

    assert contradictions(accounts, [OPENED, AUTHORIZED, LAPSED]) == []
    assert contradictions(accounts, [OPENED]) == [
        "a of t: confirmed, and not in the audit log"
    ]
    assert contradictions(accounts, [AUTHORIZED, AUTHORIZED]) == [
        "a: decided 2 times, says the audit log"
    ]


def test_nobody_is_missed_who_was_not_told() -> None:
    accounts = reconciled([Operation("a", "click", ("U0ANA",), 1)], {"a": "t"})

    assert contradictions(accounts, [OPENED]) == []


def test_a_time_line_has_the_kills_around_the_events() -> None:
    deaths = [
        Death("bot", -1001), Death("master", 900),
        Death("gateway", 1300), Death("replica", 15001),
    ]  # fmt: skip

    found = timelines([OPENED, AUTHORIZED, LAPSED], deaths)

    assert found == {
        "a": "master killed -0.1 s, opened 0.0 s, gateway killed 0.3 s, "
        "authorized 0.4 s, lapsed 14.0 s"
    }


def test_what_a_run_kept_is_read_as_it_was(tmp_path: Path) -> None:
    before = Recorded(
        history=[TOLD], threads={"a": "t"}, deaths=[Death("bot", 5)], moments=[OPENED]
    )

    before.keep(tmp_path)

    assert kept(tmp_path) == before
    assert before.killed == {"bot": 1}
