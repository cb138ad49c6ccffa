"""`keyturn stats` shows automatic calls and waiting times on one screen."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.metrics.report import Share, rate, short_duration
from tests.bot.strategies import CANARY
from tests.cli.conftest import Shell

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
Said = Callable[..., str]
DAY_MS = 86_400_000
NOON_MS = 1_795_435_200_000  # 2026-11-23 12:00 UTC


def row(name: str, **facts: Any) -> str:
    known = {"tenant": "default", "agent": "support", "thread": "t1"}
    return json.dumps(known | {"name": name, "at_ms": NOON_MS} | facts)


def decided(name: str, waited_s: int, tool: str = "process_refund") -> str:
    data = {"waited_ms": str(1000 * waited_s)}
    facts = {"tool": tool, "tier": "approve", "actor": "T0/U0ANA", "data": data}
    return row(name, **facts)


DAY = [
    *[row("call.ran", tool="look_up_order", tier="auto")] * 7,
    decided("item.authorized", 100),
    decided("item.authorized", 40),
    decided("item.rejected", 900),
    row("item.expired", tool="send_email", tier="approve"),
    row("call.denied", tool="drop_table", tier="deny"),
]


@pytest.fixture
def said(shell: Shell) -> Said:
    """Return the statistics of an export."""
    shell.write("\n".join(DAY) + "\n", "audit.jsonl")

    def said(*words: str) -> str:
        since = ("stats", "--since", "2026-11-01", "--audit", "audit.jsonl")
        return shell.said(*since, *words)

    return said


def test_a_person_reads_what_the_docs_show(said: Said) -> None:
    page = PAGE.read_text(encoding="utf-8")
    _, _, shown = page.partition("$ keyturn stats --since 2026-11-01\n")

    out = said()

    assert out == shown.partition("```")[0]
    assert max(map(len, out.splitlines())) <= 80


def test_a_machine_reads_everything(said: Said) -> None:
    out = said("--json", "--until", "2026-12-01")

    found = json.loads(out)
    assert found["since"] == "2026-11-01T00:00:00+00:00"
    assert found["until"] == "2026-12-01T00:00:00+00:00"
    assert found["total"]["corrected"] == {"count": 1, "of": 3, "rate": 1 / 3}
    assert found["total"]["waited"]["longest"] == 900
    assert [one["tool"] for one in found["tools"]][:2] == [
        "look_up_order",
        "process_refund",
    ]
    assert sum(one["calls"] for one in found["days"]) == 12


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (("--tool", "process_refund"), 3),
        (("--agent", "billing"), 0),
        (("--until", "2026-11-23T12:00Z"), 0),
        (("--until", "2026-11-23T12:00:01Z"), 12),
    ],
)
def test_calls_are_selected(said: Said, words: tuple[str, ...], calls: int) -> None:
    out = said("--json", *words)

    assert json.loads(out)["total"]["calls"] == calls


def test_an_empty_export_has_no_numbers(shell: Shell) -> None:
    shell.write("", "none.jsonl")

    out = shell.said("stats", "--audit", "none.jsonl")

    assert out.splitlines()[1] == "· No agent asked for such a call in this time."


def test_an_export_comes_from_stdin(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = io.TextIOWrapper(io.BytesIO("\n\n".join(DAY).encode()))
    given.buffer.name = "<stdin>"
    monkeypatch.setattr("sys.stdin", given)

    assert shell.found("stats", "--audit", "-")["total"]["calls"] == 12


def test_a_tools_name_steers_no_terminal(shell: Shell) -> None:
    call = {"args": {"card": CANARY}, "requester": "U0DAN"}
    names = ["\x1b[2J\u202eevil", "x" * 300]
    rows = [row("call.ran", tool=name, tier="auto", call=call) for name in names]
    shell.write("\n".join(rows), "audit.jsonl")

    out = shell.said("stats", "--audit", "audit.jsonl")

    assert out.replace("\n", "").isprintable()
    assert max(map(len, out.splitlines())) <= 80
    assert CANARY not in out + shell.said("stats", "--audit", "audit.jsonl", "--json")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is not a time"),
        (("--until", "2026-07-01T00:00"), "is not a time with its zone"),
        (("--since", "2026-11-01", "--until", "2026-10-01"), "is not after --since"),
        (("--audit", "nothing.jsonl"), "No such file"),
    ],
)
def test_a_mistake_is_named(shell: Shell, words: tuple[str, ...], problem: str) -> None:
    assert problem in shell.refused("stats", *words)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "audit.jsonl:2: This is not a row of JSON"),
        ('{"name": "moon.rose", "tenant": "t", "at_ms": 1}', "audit.jsonl:2: "),
        (row("call.ran", at_ms=10**15), "'at_ms' is missing, or is not a time"),
    ],
)
def test_a_line_that_is_no_row_is_named(shell: Shell, line: str, problem: str) -> None:
    shell.write(f"{DAY[0]}\n{line}\n", "audit.jsonl")

    assert problem in shell.refused("stats", "--audit", "audit.jsonl")


@pytest.mark.parametrize(
    ("value_ms", "shown"),
    [
        (0, "<1s"),
        (60_000, "1m"),
        (61_000, "1m01s"),
        (59_600, "1m"),
        (630_000, "10m"),
        (3_700_000, "1h01m"),
        (86_400_000 * 2 + 3_600_000 * 5, "2d05h"),
    ],
)
def test_a_time_is_as_long_as_it_is_exact(value_ms: int, shown: str) -> None:
    assert short_duration(value_ms) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "-"),
        (1, 1000, "<1 %"),
        (2, 3, "67 %"),
        (999, 1000, "99 %"),
        (5, 5, "100 %"),
    ],
)
def test_100_percent_is_all_and_0_is_none(part: int, whole: int, shown: str) -> None:
    assert rate(Share(part, whole)) == shown


def test_habits_are_compared_with_the_four_weeks_before(shell: Shell) -> None:
    def week(at_ms: int, *, approved: int, rejected: int, waited_s: int) -> list[str]:
        names = ["item.authorized"] * approved + ["item.rejected"] * rejected
        rows = [json.loads(decided(name, waited_s)) for name in names]
        return [json.dumps({**one, "at_ms": at_ms}) for one in rows]

    rows = [
        *week(NOON_MS - 20 * DAY_MS, approved=15, rejected=5, waited_s=30),
        *week(NOON_MS, approved=39, rejected=1, waited_s=5),
        decided("item.rejected", 5, "send_email"),
    ]
    shell.write("\n".join(rows) + "\n", "audit.jsonl")

    out = shell.said(
        "stats", "--since", "2026-11-20", "--audit", "audit.jsonl", "--habits"
    )

    _, _, table = out.partition("Habits")
    [heading, only] = table.split("\n\n")[0].splitlines()
    assert heading.split() == ["Decided", "Approved", "Changed", "In", "details", "p50"]
    assert only.startswith("process_refund  ")
    assert "98 % (75 %)" in only
    assert only.endswith("5s (29s)")
