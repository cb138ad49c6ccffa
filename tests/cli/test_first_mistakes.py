"""What a newcomer types wrong, or starts in the wrong place, ends in a sentence."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from keyturn.bot.app import bolt_app
from keyturn.bot.config import BotConfig
from keyturn.bot.web import Identity
from keyturn.cli import main
from keyturn.cli.main import UNEXPECTED, run
from keyturn.gateway.store.connection import usable
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
SLOW = """\
import sys, time
slow = sys.argv[1]
class Slow:
    def find_spec(name, *_):
        if name == slow:
            print("loading", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow)
import keyturn.__main__
sys.argv[1:] = ["demo"]
keyturn.__main__.main()
"""
TOKENS = {"SLACK_BOT_TOKEN": "xoxb-1-2-3", "SLACK_APP_TOKEN": "xapp-1-A-2-3"}
POLICY = "policy: {version: 1, defaults: {needs: [U0ANA]}}\n"


@pytest.fixture
def home(shell: Shell) -> Shell:
    shell.write(POLICY)
    return shell


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("words", [["sandbox"], ["run", "--sandbox"], ["demo"]])
def test_a_bad_port_is_named(home: Shell, taken: int, words: list[str]) -> None:
    config = ("--config", str(ROOT / "keyturn.yml"))

    told = home.refused(*config, *words, "--port", str(taken))

    assert str(taken) in told
    assert "choose another port" in told
    assert "--port" in home.refused(*config, *words, "--port", "65536")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "nowhere.invalid"], "choose another port or host"),
        (["--port", "0", "--request-url", "localhost:3000/events"], "'localhost:3000"),
        (["--port", "0", "--keep", "kept.json"], "is not a saved sandbox"),
        (["--port", "0", "--keep", "."], "'.': Is a directory"),
    ],
)
def test_a_sandbox_says_why_it_ends(home: Shell, words: list[str], why: str) -> None:
    home.write("{}", "kept.json")

    assert why in home.refused("sandbox", *words)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["--config", str(ROOT / "keyturn.yml"), "demo"], {}),
        (["run", "--sandbox"], {"KEYTURN_DATA_DIR": ".keyturn"}),
    ],
)
def test_a_folder_that_cannot_be_made_is_named(
    home: Shell, words: list[str], env: dict[str, str]
) -> None:
    home.write("a file, where a folder is needed", ".keyturn")

    assert "cannot be made" in home.refused(*words, **env)


def test_messages_that_a_sandbox_cannot_read_again_are_named(home: Shell) -> None:
    (home.folder / ".keyturn" / "sandbox").mkdir(parents=True)
    home.write("{}", ".keyturn/sandbox/sandbox.json")

    words = ("run", "--sandbox", "--port", "0")
    told = home.refused(*words, KEYTURN_DATA_DIR=".keyturn")

    assert "sandbox.json" in told
    assert "port" not in told


def test_the_demo_is_not_played_with_other_agents(home: Shell) -> None:
    told = home.refused("--config", "keyturn.yml", "demo")

    assert "without --config" in told
    assert "'keyturn run --sandbox' shows your agents" in told


def test_an_empty_audit_log_is_not_a_silence(home: Shell) -> None:
    (home.folder / ".keyturn" / "valkey").mkdir(parents=True)

    shown = home("audit", "export")

    assert shown.code == 0
    told = shown.out + shown.err
    assert told == "The audit log has no entries in this time.\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--key", "keyturn/audit+12345678+AAAA"], "name its FILE"),
        (["bundle.jsonl", "--key", "k", "--checkpoint", "kept.txt"], "omit FILE"),
    ],
)
def test_an_unknown_guarantee_is_named(home: Shell, words: list[str], why: str) -> None:
    assert why in home.refused("audit", "verify", *words)


@pytest.mark.parametrize("module", ["keyturn.cli.main", "keyturn.cli.stack"])
def test_ctrl_c_while_it_loads_ends_it_without_a_word(home: Shell, module: str) -> None:
    home.write(SLOW, "slow.py")
    process = subprocess.Popen(
        [sys.executable, "slow.py", module],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
        preexec_fn=lambda: signal.signal(  # noqa: PLW1509 - one thread is here
            signal.SIGINT, signal.default_int_handler
        ),
    )
    assert process.stdout
    assert process.stdout.readline() == "loading\n"

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGINT
    assert said == ""


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hush/more@h:6379/0",
        "redis://127.0.0.1:1/0?hush=1",
        "redis://127.0.0.1:1/hush",
        "redis+sentinel://:hush@127.0.0.1:1",
        "redis+cluster://",
    ],
)
def test_an_unreadable_store_url_is_refused_and_hidden(home: Shell, url: str) -> None:
    told = home.refused("frozen", KEYTURN_REDIS_URL=url)

    assert "In a password, write / as %2F" in told
    assert "hush" not in told


async def test_bolt_says_nothing_of_a_token_it_does_not_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-in-the-environment")
    me = Identity(team="T1", bot_id="B1", user="U1", enterprise="")
    config = BotConfig(bot_token="xoxb-1", app_token="xapp-1", seal_keys=(b"k" * 32,))

    with caplog.at_level(logging.WARNING):
        bolt_app(config, me)

    assert not caplog.records


def test_the_first_start_names_everything_that_is_missing(shell: Shell) -> None:
    told = shell.refused("run")

    listed = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    firsts = ["SLACK_BOT_TOKEN", "SLACK_APP_TOKEN", "There is no file 'policy.yml'"]
    firsts.append("'agents' in keyturn.yml names no graph")
    for number, (line, first) in enumerate(zip(listed, firsts, strict=False), 1):
        assert line.startswith(f"{number}. {first}")
    assert "keyturn doctor" in told.splitlines()[-1]
    assert not (shell.folder / ".keyturn").exists()


@pytest.mark.parametrize("command", ["bot", "gateway"])
def test_what_runs_for_long_waits_for_its_store_and_a_query_does_not(
    home: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(usable, "USABLE_WITHIN_S", 1.0)
    # Commands configure their logs.
    warn = Mock()
    monkeypatch.setattr(usable.logger, "warning", warn)
    home.env = {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0", **TOKENS}

    shown = home(command)
    home("frozen")

    assert shown.code
    told = "check that Redis runs and that KEYTURN_REDIS_URL names it"
    assert told in shown.out + shown.err
    [waited] = warn.call_args_list
    assert "127.0.0.1:1" in waited.args


@pytest.mark.parametrize(
    "words",
    [
        ["freeze", "everything"],
        ["frozen"],
        ["jobs", "list"],
        ["outbox", "list"],
        ["security"],
        ["stats"],
        ["audit", "export"],
        ["erase", "U0DAN", "--yes"],
        ["api-keys", "list"],
        ["repair"],
        ["repair", "--new-checkpoints"],
    ],
    ids=" ".join,
)
def test_a_command_makes_no_store_to_answer_for(shell: Shell, words: list[str]) -> None:
    told = shell.refused(*words)

    assert f"there is no store in '{shell.folder / '.keyturn'}'" in told
    assert "--config" in told
    assert list(shell.folder.iterdir()) == []


def test_the_settings_of_the_service_have_to_be_given(shell: Shell) -> None:
    config = shell.write("policy: {version: 1}\n")
    kept = shell.folder / "kept"
    kept.mkdir()

    told = shell.refused("--config", str(config), "freeze", "everything")
    elsewhere = shell.refused("frozen", KEYTURN_DATA_DIR="kept")

    assert "KEYTURN_REDIS_URL and KEYTURN_SECRET" in told
    assert str(kept) in elsewhere
    assert list(kept.iterdir()) == []


def test_what_runs_or_ran_there_is_asked(shell: Shell) -> None:
    shell("api-keys", "create", "billing", "--agent", "billing")

    told = shell.said("frozen")

    assert told == "✔ Nothing is frozen, and no agent is paused.\n"


def test_a_key_of_sandboxes_is_not_made_beside_one(shell: Shell) -> None:
    create = ("api-keys", "create", "trial", "--agent", "billing")
    inside = str(shell.folder / ".keyturn" / "sandbox")
    shell(*create, KEYTURN_DATA_DIR=inside)

    told = shell.refused(*create)

    assert f"repeat the command with KEYTURN_DATA_DIR={inside}" in told
    assert not (shell.folder / ".keyturn" / "valkey").exists()


def test_the_doctor_makes_nothing_where_nothing_of_keyturn_is(shell: Shell) -> None:
    code, told, _ = shell("doctor")

    assert code == 1
    assert f"· store: skipped: '{shell.folder}' contains no files of Keyturn" in told
    assert "✖ Slack secrets" in told
    assert list(shell.folder.iterdir()) == []


def test_the_doctor_says_which_settings_it_read(shell: Shell) -> None:
    shell.write("version: 1\n", "policy.yml")
    without = shell("doctor").out
    config = shell.write("tenant: shop\n")

    assert f"no 'keyturn.yml' in '{shell.folder}'; tenant default" in without
    assert f"✔ settings: '{config}'; tenant shop" in shell("doctor").out


def test_a_folder_that_cannot_be_looked_into_is_named(shell: Shell) -> None:
    shell.write("a file, where a folder is needed", ".keyturn")

    told = shell.refused("frozen", KEYTURN_SECRET="ab" * 32)

    assert "cannot be used (Not a directory)" in told


@pytest.mark.slow
def test_a_user_without_a_home_folder_can_start_it(tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text(
        "import pwd, sys\n"
        "def nobody(uid):\n"
        "    raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "import keyturn.__main__\n"
        "sys.argv[1:] = ['run', '--help']\n"
        "keyturn.__main__.main()\n",
        encoding="utf-8",
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src")},
    )

    assert done.stderr == ""
    assert "Run gateway, agents and bot" in done.stdout


def test_debug_shows_why_a_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a module that cannot be imported")

    monkeypatch.setattr(main, "commands", broken)

    assert run(["frozen"], {}) == UNEXPECTED
    with pytest.raises(RuntimeError, match="cannot be imported"):
        run(["--debug", "frozen"], {})
