"""A suggestion covers calls that people always approved, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.cli.main import run
from keyturn.gateway.audit_export import read_export
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.replay import Row, replay
from keyturn.gateway.policy.suggesting import Suggestion, suggest
from keyturn.gateway.protocol.records import Tier
from tests.levels import examples

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ANA = "T0/U0ANA"


def row(number: int, name: str, args: dict[str, Any] | None, **more: Any) -> str:
    facts = {
        "name": name,
        "at_ms": 1_783_166_400_000 + number,
        "item": f"ap_{number}.0",
        "tool": "ship",
        "tier": "approve",
        "actor": "" if name == "item.expired" else ANA,
    }
    call = {} if args is None else {"call": {"args": args}}
    return json.dumps(facts | call | more)


def rows_of(*lines: str) -> list[Row]:
    return [*read_export(lines, "audit.jsonl", Row)]


def approved(count: int, **args: Any) -> list[str]:
    return [row(n, "item.authorized", {"kg": n / 10, **args}) for n in range(count)]


def test_small_parcels_were_always_approved() -> None:
    rejected = row(900, "item.rejected", {"kg": 5})

    (found,) = suggest(rows_of(*approved(38), rejected))

    assert found == Suggestion(tool="ship", argument="kg", limit=3.7, calls=38)
    assert found.sentence == "38 of 38 calls with kg up to 3.7 were approved unchanged"
    assert found.rule == '{to: approve, when: "args.kg > 3.7", because: "over 3.7"}'
    assert found.at_most_percent == 8


def test_a_tool_that_people_always_approved_needs_no_limit() -> None:
    (found,) = suggest(rows_of(*approved(20)))

    assert (found.argument, found.rule, found.calls) == ("", "", 20)


@pytest.mark.parametrize(
    "against",
    [
        [row(900, "item.rejected", {"kg": 0})],
        [row(900, "item.edited", {"kg": 0}), row(900, "item.authorized", {"kg": 0})],
        [row(900, "item.authorized", {"kg": 0}, tier="escalate")],
        [row(900, "item.voted", {"kg": 0}), row(900, "item.authorized", {"kg": 0})],
        [row(900, "item.authorized", {"kg": 0}), row(900, "item.failed", {"kg": 0})],
        # Its subject is no longer stored.
        [row(900, "item.rejected", None)],
        # It is hidden in the export, and may be any number.
        [row(900, "item.rejected", {"kg": "(hidden)"})],
        # It does not contain the argument by which a rule would distinguish it.
        [row(900, "item.rejected", {"other": 1})],
    ],
)
def test_whatever_else_happened_to_a_call_speaks_against(against: list[str]) -> None:
    assert suggest(rows_of(*approved(38), *against)) == []


def test_few_calls_say_nothing() -> None:
    assert suggest(rows_of(*approved(19))) == []


def test_what_asked_nobody_saves_nothing() -> None:
    quiet = {"actor": "policy", "tier": "notify"}
    lines = [row(n, "item.authorized", {"kg": n}, **quiet) for n in range(50)]

    assert suggest(rows_of(*lines)) == []


@pytest.mark.parametrize("name", ["in", "größe", "a-b", "a) || (true", ""])
def test_only_names_that_a_rule_can_read_are_suggested(name: str) -> None:
    lines = [row(n, "item.authorized", {name: n}) for n in range(20)]

    assert suggest(rows_of(*lines, row(900, "item.rejected", {name: 99}))) == []


def test_the_command_says_what_to_write(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join([*approved(38), row(900, "item.rejected", {"kg": 5})]))

    codes = [
        run(["policy", "suggest", "--audit", str(file), *more], {})
        for more in ([], ["--least", "50"])
    ]

    out = capfd.readouterr().out
    _, _, shown = PAGE.read_text("utf-8").partition("suggest --audit export.jsonl\n")
    assert codes == [0, 0]
    assert out.startswith(shown.partition("```")[0])
    assert "· No tool has at least 50 calls that were always approved." in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(["policy", "suggest", "--audit", str(file), "--json"], {}) == 0
    assert json.loads(capfd.readouterr().out)[0]["at_most_percent"] == 8


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["item.authorized"] * 6 + ["item.rejected"]),
            st.one_of(st.integers(-5, 90), st.floats(-5, 90)),
        ),
        min_size=5,
        max_size=40,
    )
)
def test_the_rule_covers_what_was_approved_only(calls: list[tuple[str, float]]) -> None:
    lines = [row(n, name, {"kg": kg}) for n, (name, kg) in enumerate(calls)]
    rows = rows_of(*lines)

    for found in suggest(rows, least=3):
        raised = f", raise: [{found.rule}]" if found.rule else ""
        policy = load_policy(
            f"version: 1\ntools: {{ship: {{tier: notify{raised}}}}}\n", "p"
        )
        free = [one for one in replay(policy, rows) if one.now is Tier.NOTIFY]
        names = {int(one.item[3:-2]): calls[int(one.item[3:-2])][0] for one in free}
        assert len(free) == found.calls
        assert set(names.values()) == {"item.authorized"}


def test_entries_of_no_call_speak_neither_for_nor_against() -> None:
    other = json.dumps({"name": "policy.loaded", "at_ms": 1, "actor": ANA})

    (found,) = suggest(rows_of(*approved(20), other))

    assert found.sentence == "20 of 20 calls were approved unchanged"
