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
import yaml

from keyturn.cli.main import USAGE
from tests.cli.conftest import Shell

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
def home(shell: Shell) -> Shell:
    shell.write(POLICY, "p.yml")
    shell.write(json.dumps(CALL), "call.json")
    return shell


EXPLAIN = ("policy", "explain", "p.yml", "--call", "call.json")


def test_a_raised_call_is_explained_down_to_the_minute(home: Shell) -> None:
    out = home.said(*EXPLAIN, "--at", NOON, "--windows", "refunded=147.50")

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


def test_a_total_that_is_not_said_is_that_of_this_call_alone(home: Shell) -> None:
    document = home.found(*EXPLAIN, "--at", NOON)

    assert document["tier"] == "approve"
    assert document["facts"]["windows"] == {"refunded": 49_000_000}
    assert document["facts"]["requests_10m"] == 1


def test_the_time_and_what_happened_before_decide(home: Shell) -> None:
    night = home.said(*EXPLAIN, "--at", "2026-07-02T03:00+02:00")
    failed = home.said(*EXPLAIN, "--at", NOON, "--recent", "failures_1h=3")

    assert "off_hours(now, 'UTC', '08:00-18:00')   (now = 2026-07-02 01:00:00" in night
    assert failed.startswith("tier      deny\n")
    assert "who " not in failed


def test_it_is_said_when_a_model_may_raise_a_call(home: Shell) -> None:
    on = "tier: approve\n    triage: {timeout: 4s, may_deny: true}"
    home.write(POLICY.replace("tier: approve", on, 1), "p.yml")

    out = home.said(*EXPLAIN, "--at", NOON)

    assert "triage    a model may refuse it, within 4 s\n" in out


def test_an_untrusted_value_cannot_steer_the_terminal(home: Shell) -> None:
    home.write(POLICY.replace("windows.refunded > 100", "args.customer != ''"), "p.yml")
    hostile = {"customer": "\x1b[2J\u202e", "amount": 1}
    home.write(json.dumps({**CALL, "args": hostile}), "call.json")

    out = home.said(*EXPLAIN, "--at", NOON)

    assert "\\x1b[2J\\u202e" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--at", "noon"), "--at 'noon' is not a time with its zone; write 20"),
        (("--at", "2026-07-01T12:00"), "is not a time with its zone; write 20"),
        (("--at", "0001-01-01T00:00+14:00"), "is not a time with its zone; write 20"),
        (("--windows", "refundd=1"), "there is no 'refundd'; did you mean 'refunded'?"),
        (("--windows", "refunded"), "--windows refunded=: '' is not a number"),
        (("--windows", "refunded=-1"), "'-1' is not a number that can be added up"),
        (("--recent", "failures_1h=x"), "write a count, as failures_1h=3"),
    ],
)
def test_a_word_that_means_nothing_is_refused(
    home: Shell, words: tuple[str, ...], problem: str
) -> None:
    assert problem in home.refused(*EXPLAIN, *words)


def test_a_check_comes_as_json(home: Shell) -> None:
    assert home.found("policy", "check", "p.yml")["tools"] == ["refund"]
    home.write(POLICY.replace("refunded > 100", "refundd > 100"), "p.yml")

    code, out, _ = home("policy", "check", "p.yml", "--json")

    (problem,) = json.loads(out)["problems"]
    assert (code, problem["place"]) == (1, "p.yml:16")
    assert "did you mean 'refunded'?" in problem["text"]


NOBODY = """\
version: 1
defaults: {tier: deny}
tools: {a: {tier: auto, raise: [{to: deny, when: args.x, because: y}]}}
"""
TOO_FEW = """\
version: 1
defaults: {needs: [U0ANA], tier: deny}
roles: {group: {usergroups: [S0SUPPORT]}}
tools:
  one: {tier: approve}
  two: {tier: approve, raise: [{to: escalate, when: 1 < 2, because: y}]}
  enough: {tier: escalate, needs: [U0ANA, U0BEN]}
  unknown: {tier: escalate, needs: group}
"""
CALLS_NOBODY = """\
version: 1
defaults: {needs: senior}
roles: {senior: {users: [U0ANA, U0BEN]}, leads: {users: [U0LEAD]}}
requirements: {two: {of: senior, approvals: 2}}
tiers: {escalate: {needs: two, escalate_at: 50%, escalate_to: leads}}
tools: {pay: {tier: escalate}, look_up: {tier: auto}}
"""
UNUSED = """\
version: 1
defaults: {needs: [U0ANA, U0BEN]}
roles: {senior: {users: [U0ANA, U0BEN]}}
requirements: {two: {of: senior, approvals: 2}}
"""
UNTYPED = """\
version: 1
defaults: {needs: [U0ANA, U0BEN]}
tools: {a: {raise: [{to: deny, when: args.level == 3, because: x}]}}
"""
NO_RECEIPT = """\
version: 1
defaults: {needs: [U0ANA, U0BEN]}
tools:
  pay: {tier: approve, audience: bank}
  tell: {tier: notify, notify: none, audience: bank}
  look_up: {tier: auto, audience: bank}
"""


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (NOBODY, "'a' needs an approval, and no reviewer is set."),
        (TOO_FEW, "'two' needs 2 people at escalate, and 1 can be asked, so at that"),
        (CALLS_NOBODY, "'tiers.escalate.escalate_to' calls nobody for 'pay': none of"),
        (UNUSED, "The requirement 'two' is not used"),
        (NO_RECEIPT, "Automatic calls of 'look_up' have no receipt for 'bank'."),
        (UNTYPED, "p.yml:3: 'tools.a.raise[0].when': args.level has no declared type"),
    ],
)
def test_a_likely_mistake_is_pointed_out(home: Shell, text: str, note: str) -> None:
    home.write(text, "p.yml")

    notes = home.said("policy", "check", "p.yml").splitlines()

    assert [one for one in notes[1:] if f"· {note}" in one]
    assert text == NOBODY or len(notes) == 2


def audit(home: Shell) -> None:
    call = {"args": {"customer": "C1", "amount": 147}}
    evaluated = {"agent": "a", "tool": "refund", "tier": "approve"}
    rows: list[dict[str, Any]] = [
        {"name": "item.authorized", "item": "ap1.0", **evaluated, "call": call},
        {"name": "item.rejected", "item": "ap2.0", **evaluated},
        {"name": "call.denied", **evaluated, "tool": "other"},
    ]
    at = {"at_ms": 1_782_900_000_000}
    home.write("\n".join(json.dumps({**at, **one}) for one in rows), "audit.jsonl")


def test_a_replay_prints_what_would_have_changed(home: Shell) -> None:
    audit(home)
    words = ("policy", "replay", "p.yml", "--audit", "audit.jsonl")

    *lines, last = home.said(*words).splitlines()
    document = home.found(*words)

    assert last.startswith("2 of them have no arguments in the export")
    assert lines == [
        "2026-07-01 10:00 UTC  a  refund  approve → escalate",
        "    The policy lists this tool as approve.",
        "    Raised to escalate: over 100 a day.",
        "By tool and rule:",
        "      1  refund  approve → escalate  Raised to escalate: over 100 a day.",
        "3 calls: 1 would need more, 0 would need less, 2 are unchanged.",
    ]
    assert (document["calls"], document["without_arguments"]) == (3, 2)
    assert [one["now"] for one in document["changed"]] == ["escalate"]


@pytest.mark.parametrize(
    ("export", "words", "code"),
    [
        ("audit.jsonl", ["### Policy p.yml", "### Past calls", "1 would need more"], 0),
        ("", ["### Policy p.yml", "✔"], 0),
        ("none.jsonl", ["### Past calls", "There is no file 'none.jsonl'"], USAGE),
    ],
)
def test_the_action_puts_check_and_replay_into_the_summary_of_the_job(
    home: Shell, export: str, words: list[str], code: int
) -> None:
    audit(home)

    ended, summary = by_the_action(home, "p.yml", export)

    assert ended == code
    assert all(word in summary for word in words), summary


def test_the_action_fails_for_a_wrong_policy_and_names_its_line(home: Shell) -> None:
    home.write("version: 1\ntool: {}\n", "p.yml")

    ended, summary = by_the_action(home, "p.yml", "")

    assert ended != 0
    assert "p.yml:2: Unknown key 'tool'" in summary


def test_a_policy_cannot_format_the_summary_of_the_job(home: Shell) -> None:
    home.write('version: 1\n"</pre><b>": {}\n', "p.yml")

    _, summary = by_the_action(home, "p.yml", "")

    assert "'&lt;/pre>&lt;b>'" in summary


def by_the_action(home: Shell, policy: str, export: str) -> tuple[int, str]:
    """Run the last step of the GitHub Action; return its exit code and the summary.

    The runner must not read the output as commands.
    """
    root = Path(__file__).parents[2]
    action = yaml.safe_load((root / "action.yml").read_text(encoding="utf-8"))
    step, summary = action["runs"]["steps"][-1], home.folder / "summary.md"
    summary.write_text("")
    folder = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(root / "src"),
        "GITHUB_STEP_SUMMARY": str(summary),
        "POLICY": policy,
        "AUDIT": export,
        "NO_COLOR": step["env"]["NO_COLOR"],
    }
    ran = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=home.folder, env=env, check=False, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stopped, *_, resumed = ran.stdout.splitlines()
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{32}", stopped)
    assert resumed == f"::{stopped.removeprefix('::stop-commands::')}::"
    return ran.returncode, summary.read_text(encoding="utf-8")


def test_a_file_that_cannot_be_read_is_no_wrong_policy(home: Shell) -> None:
    code, out, err = home("policy", "check", "none.yml", "--json")

    assert (code, out) == (USAGE, "")
    assert "There is no file 'none.yml' with the policy." in err


def test_a_call_written_on_the_command_line_is_told_of_the_pipe(home: Shell) -> None:
    words = ("policy", "explain", "p.yml", "--call", '{"tool": "refund"}')

    assert "pipe it to --call -" in home.refused(*words)


def in_a_terminal(home: Shell, *words: str, **env: str) -> str:
    """Run the command with a terminal as its output; return the output."""
    terminal, end = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "keyturn", *words],
        cwd=home.folder,
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
def test_a_terminal_has_colours_unless_they_are_not_wanted(home: Shell) -> None:
    words = ("policy", "check", "none.yml")
    coloured = in_a_terminal(home, *words, NO_COLOR="")
    plain = in_a_terminal(home, *words, NO_COLOR="1")

    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.slow
def test_what_the_output_cannot_encode_is_escaped(home: Shell) -> None:
    home.write(POLICY.replace("over 100 a day", "über 📦"), "p.yml")

    shown = in_a_terminal(
        home,
        *(*EXPLAIN, "--at", NOON, "--windows", "refunded=147"),
        PYTHONIOENCODING="latin-1",
    )

    assert "ber \\U0001f4e6" in shown


PROVE = ("policy", "prove", "refund", "p.yml")


def test_a_claim_is_proven_refuted_or_told_to_be_unprovable(home: Shell) -> None:
    assert "Proven: each such call has at least 1 person" in home.said(
        *PROVE, "--people", "1"
    )

    # Without a customer, the window escalates the only call that was tried.
    code, out, _ = home(*PROVE, "--tier", "escalate")
    assert code == 1
    assert "Not provable: windows.refunded > 100" in out

    code, out, _ = home(*PROVE, "--tier", "deny")
    assert code == 1
    assert "This call has only tier escalate and 2 people:\n{}" in out

    rule = "{to: escalate, when: args.amount > 100, because: large}"
    head = POLICY.partition("windows:")[0]
    home.write(f"{head}tools: {{refund: {{raise: [{rule}]}}}}", "p.yml")
    where = ("--where", "args.amount > 100")
    assert home.found(*PROVE, "--people", "2", *where)["proven"] is True
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}}
    home.write(json.dumps(schema | {"required": ["amount"]}), "schema.json")
    code, out, _ = home(*PROVE, "--people", "2", "--schema", "schema.json", "--json")
    found = json.loads(out)
    assert (code, found["proven"], found["people"]) == (1, False, 1)
    assert found["args"] == {"amount": 100}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Give --tier or --people"),
        (("--people", "1", "--where", "args.amount >"), "--where"),
        (("--people", "1", "--where", "argz.amount > 1"), "--where"),
        (
            ("--people", "1", "--schema", "s.json", "--where", "args.amountt > 1"),
            "args.amountt",
        ),
        (
            ("--people", "1", "--schema", "s.json", "--where", "args.amount > 9"),
            "No call can be of this kind",
        ),
    ],
)
def test_a_claim_that_says_nothing_is_refused(
    home: Shell, words: tuple[str, ...], why: str
) -> None:
    amount = {"type": "number", "maximum": 5}
    schema = {"type": "object", "properties": {"amount": amount}}
    home.write(json.dumps(schema), "s.json")
    assert why in home.refused(*PROVE, *words)


def test_a_misspelled_tool_is_not_proven(home: Shell) -> None:
    told = home.refused("policy", "prove", "refnd", "p.yml", "--people", "1")
    assert "did you mean 'refund'" in told
