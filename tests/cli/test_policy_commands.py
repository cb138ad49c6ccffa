"""``keyturn policy`` shows fired rules, deciders, deadlines and changes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyturn.cli.main import USAGE, run

POLICY = """\
version: 1
defaults: {needs: support, expires_in: 1h, channel: "#cards"}
roles: {support: {usergroups: [S0SUPPORT]}, senior: {users: [U0LEAD]}}
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 24h}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  escalate:
    {needs: with_senior, expires_in: 30m, remind_at: 50%,
     escalate_at: 80%, escalate_to: senior}
tools:
  refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.refunded > 100, because: over 100 a day}
      - {to: escalate, when: "off_hours(now, 'UTC', '08:00-18:00')", because: at night}
      - {to: deny, when: recent.failures_1h > 2, because: it keeps failing}
"""
CALL = {"tool": "refund", "args": {"customer": "C1", "amount": 49}}
HOLDERS = "support (S0SUPPORT) or senior (U0LEAD)"
NOON = "2026-07-01T12:00Z"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yml").write_text(POLICY)
    (tmp_path / "call.json").write_text(json.dumps(CALL))
    return tmp_path


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    def told(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["policy", *words], {})
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return told


EXPLAIN = ("explain", "p.yml", "--call", "call.json")


def test_a_raised_call_is_explained_down_to_the_minute(home: Path, tell: Any) -> None:
    code, out, _ = tell(*EXPLAIN, "--at", NOON, "--windows", "refunded=147.50")

    assert code == 0
    assert out.splitlines() == [
        "tier      escalate",
        "because   The policy lists this tool as approve.",
        "because   Raised to escalate: over 100 a day.",
        "rule      windows.refunded > 100   (windows.refunded = 147.5)",
        f"who       2 people of {HOLDERS}, at least 1 senior",
        "may       approve, edit, reject, respond",
        "within    30m (at 2026-07-01 12:30:00 UTC), then it expires",
        "reminds   after 15m (at 2026-07-01 12:15:00 UTC)",
        "escalates to senior after 24m (at 2026-07-01 12:24:00 UTC)",
        "reaches   support: a mention of S0SUPPORT",
        "where     #cards",
    ]


def test_a_total_that_is_not_said_is_that_of_this_call_alone(
    home: Path, tell: Any
) -> None:
    _, out, _ = tell(*EXPLAIN, "--at", NOON, "--json")

    document = json.loads(out)
    assert document["tier"] == "approve"
    assert document["facts"]["windows"] == {"refunded": 49_000_000}
    assert document["facts"]["requests_10m"] == 1


def test_the_time_decides_when_it_is_asked_for(home: Path, tell: Any) -> None:
    _, night, _ = tell(*EXPLAIN, "--at", "2026-07-02T03:00+02:00")

    assert "off_hours(now, 'UTC', '08:00-18:00')   (now = 2026-07-02 01:00:00" in night


def test_what_happened_before_decides_too(home: Path, tell: Any) -> None:
    _, out, _ = tell(*EXPLAIN, "--at", NOON, "--recent", "failures_1h=3")

    assert out.startswith("tier      deny\n")
    assert "who " not in out


def test_it_is_said_when_a_model_may_raise_a_call(home: Path, tell: Any) -> None:
    on = "tier: approve\n    triage: {timeout: 4s, may_deny: true}"
    text = (home / "p.yml").read_text().replace("tier: approve", on, 1)
    (home / "p.yml").write_text(text)

    _, out, _ = tell(*EXPLAIN, "--at", NOON)

    assert "triage    a model may refuse it, within 4 s\n" in out


def test_an_untrusted_value_cannot_steer_the_terminal(home: Path, tell: Any) -> None:
    text = POLICY.replace("windows.refunded > 100", "args.customer != ''")
    (home / "p.yml").write_text(text)
    hostile = {"customer": "\x1b[2J\u202e", "amount": 1}
    (home / "call.json").write_text(json.dumps({**CALL, "args": hostile}))

    _, out, _ = tell(*EXPLAIN, "--at", NOON)

    assert "\\x1b[2J\\u202e" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--at", "noon"), "--at 'noon' is not a time; write 2026-07-04T02:30Z"),
        (("--at", "2026-07-01T12:00"), "add Z or an offset, as in 2026-07-01T12:00Z"),
        (("--at", "2026-07-04"), "as in 2026-07-04T00:00Z"),
        (("--at", "0001-01-01T00:00+14:00"), "is outside the years 1 to 9999 in UTC"),
        (("--windows", "recent.failures_1h=3"), "there is no 'recent.failures_1h'"),
        (("--windows", "refundd=1"), "there is no 'refundd'; did you mean 'refunded'?"),
        (("--windows", "refunded"), "--windows refunded=: '' is not a number"),
        (("--windows", "refunded=-1"), "'-1' is not a number that can be added up"),
        (
            ("--recent", "failures=1"),
            "there is no 'failures'; did you mean 'failures_1",
        ),
        (("--recent", "failures_1h=x"), "write a count, as failures_1h=3"),
    ],
)
def test_a_word_that_means_nothing_is_refused(
    home: Path, tell: Any, words: tuple[str, ...], problem: str
) -> None:
    code, _, err = tell(*EXPLAIN, *words)

    assert code == USAGE
    assert problem in err


def test_a_check_comes_as_json(home: Path, tell: Any) -> None:
    good = tell("check", "p.yml", "--json")
    (home / "p.yml").write_text(POLICY.replace("refunded > 100", "refundd > 100"))
    bad = tell("check", "p.yml", "--json")

    assert good[0] == 0
    assert json.loads(good[1])["tools"] == ["refund"]
    assert bad[0] == 1
    (problem,) = json.loads(bad[1])["problems"]
    assert problem["place"] == "p.yml:16"
    assert "did you mean 'refunded'?" in problem["text"]


def test_a_rule_that_could_ask_people_shows_that_nobody_is_set(
    home: Path, tell: Any
) -> None:
    (home / "p.yml").write_text(
        "version: 1\ndefaults: {tier: deny}\n"
        "tools: {a: {tier: auto, raise: [{to: deny, when: args.x, because: y}]}}"
    )

    _, out, _ = tell("check", "p.yml")

    assert "'a' needs an approval, and no reviewer is set." in out


def test_a_tool_that_too_few_people_can_approve_is_pointed_out(
    home: Path, tell: Any
) -> None:
    (home / "p.yml").write_text(
        "version: 1\ndefaults: {needs: [U0ANA], tier: deny}\n"
        "roles: {group: {usergroups: [S0SUPPORT]}}\n"
        "tools:\n"
        "  one: {tier: approve}\n"
        "  two: {tier: approve, raise: [{to: escalate, when: 1 < 2, because: y}]}\n"
        "  enough: {tier: escalate, needs: [U0ANA, U0BEN]}\n"
        "  unknown: {tier: escalate, needs: group}\n"
    )

    code, out, _ = tell("check", "p.yml")

    assert code == 0
    assert out.splitlines()[1:] == [
        (
            "· 'two' needs 2 people at escalate, and 1 can be asked, so at that tier "
            "it can only be rejected or expire."
        )
    ]


def test_an_escalation_that_reaches_nobody_is_pointed_out(
    home: Path, tell: Any
) -> None:
    (home / "p.yml").write_text(
        "version: 1\ndefaults: {needs: senior}\n"
        "roles: {senior: {users: [U0ANA, U0BEN]}, leads: {users: [U0LEAD]}}\n"
        "requirements: {two: {of: senior, approvals: 2}}\n"
        "tiers: {escalate: {needs: two, escalate_at: 50%, escalate_to: leads}}\n"
        "tools: {pay: {tier: escalate}, look_up: {tier: auto}}\n"
    )

    code, out, _ = tell("check", "p.yml")

    assert code == 0
    assert out.splitlines()[1:] == [
        (
            "· 'tiers.escalate.escalate_to' calls nobody for 'pay': none of 'leads' is "
            "listed for the requirement; add them there, or name a channel."
        )
    ]


def audit(home: Path) -> None:
    call = {"args": {"customer": "C1", "amount": 147}}
    evaluated = {"agent": "a", "tool": "refund", "tier": "approve"}
    rows: list[dict[str, Any]] = [
        {"name": "item.authorized", "item": "ap1.0", **evaluated, "call": call},
        {"name": "item.rejected", "item": "ap2.0", **evaluated},
        {"name": "call.denied", **evaluated, "tool": "other"},
    ]
    at = {"at_ms": 1_782_900_000_000}
    (home / "audit.jsonl").write_text(
        "\n".join(json.dumps({**at, **one}) for one in rows)
    )


def test_a_replay_prints_what_would_have_changed(home: Path, tell: Any) -> None:
    audit(home)

    code, out, _ = tell("replay", "p.yml", "--audit", "audit.jsonl")

    assert code == 0
    *lines, last = out.splitlines()
    assert last.startswith("2 of them have no arguments in the export")
    assert lines == [
        "2026-07-01 10:00 UTC  a  refund  approve → escalate",
        "    The policy lists this tool as approve.",
        "    Raised to escalate: over 100 a day.",
        "3 calls: 1 would need more, 0 would need less, 2 are unchanged.",
    ]


def test_a_replay_comes_as_json(home: Path, tell: Any) -> None:
    audit(home)

    _, out, _ = tell("replay", "p.yml", "--audit", "audit.jsonl", "--json")

    document = json.loads(out)
    assert (document["calls"], document["without_arguments"]) == (3, 2)
    assert [one["now"] for one in document["changed"]] == ["escalate"]


def test_a_bad_export_is_named_with_its_line(home: Path, tell: Any) -> None:
    (home / "audit.jsonl").write_text('{"name": "call.ran"}\n')

    code, _, err = tell("replay", "p.yml", "--audit", "audit.jsonl")

    assert code == USAGE
    assert "audit.jsonl:1: 'at_ms' is missing." in err


def test_a_file_that_cannot_be_read_is_told_as_json_too(home: Path, tell: Any) -> None:
    code, out, _ = tell("check", "none.yml", "--json")
    in_words, _, _ = tell("check", "none.yml")

    assert code == in_words == USAGE
    assert json.loads(out) == {
        "ok": False,
        "problems": [
            {
                "place": "none.yml",
                "text": "There is no file 'none.yml' with the policy.",
            }
        ],
    }


def test_a_call_written_on_the_command_line_is_told_of_the_pipe(
    home: Path, tell: Any
) -> None:
    code, _, err = tell("explain", "p.yml", "--call", '{"tool": "refund"}')

    assert code == USAGE
    assert "pipe it to --call -" in err


def in_a_terminal(home: Path, *words: str, **env: str) -> str:
    """Run the command with a terminal as its output; return the output."""
    terminal, end = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "keyturn", "policy", *words],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **env},
        stdout=end,
        stderr=end,
        check=False,
    )
    os.close(end)
    shown = os.read(terminal, 100_000).decode("utf-8", "replace")
    os.close(terminal)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("words", [(*EXPLAIN, "--at", NOON), ("check", "none.yml")])
def test_a_terminal_has_colours_unless_they_are_not_wanted(
    home: Path, words: tuple[str, ...]
) -> None:
    coloured = in_a_terminal(home, *words, NO_COLOR="")
    plain = in_a_terminal(home, *words, NO_COLOR="1")

    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.slow
def test_what_the_output_cannot_encode_is_escaped(home: Path) -> None:
    (home / "p.yml").write_text(POLICY.replace("over 100 a day", "über 📦"), "utf-8")

    shown = in_a_terminal(
        home,
        *(*EXPLAIN, "--at", NOON, "--windows", "refunded=147"),
        PYTHONIOENCODING="latin-1",
    )

    assert "ber \\U0001f4e6" in shown
