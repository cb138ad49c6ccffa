"""What a newcomer types wrong, or starts in the wrong place, ends in a sentence."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keyturn.bot.app import bolt_app
from keyturn.bot.config import BotConfig
from keyturn.bot.identity import Identity
from keyturn.cli.main import USAGE, run
from keyturn.gateway.store.connection import usable

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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyturn.yml").write_text(POLICY, encoding="utf-8")
    return tmp_path


@pytest.fixture
def tell(home: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def told(*words: str, **env: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(words, env)
        return code, "".join(capsys.readouterr())

    return told


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    "words", [[], ["policy"], ["audit"], ["keys"], ["api-keys"], ["jobs"], ["webhooks"]]
)
def test_help_cuts_no_command_short(tell: Any, words: list[str]) -> None:
    _, told = tell(*words, "--help")

    assert not re.findall(r"^  .*\.\.\.$", told, re.MULTILINE)


@pytest.mark.parametrize("words", [["sandbox"], ["run", "--sandbox"], ["demo"]])
def test_a_port_that_is_taken_or_none_is_said(
    tell: Any, taken: int, words: list[str]
) -> None:
    config = ["--config", str(ROOT / "keyturn.yml")]

    code, told = tell(*config, *words, "--port", str(taken))
    no_port, why = tell(*config, *words, "--port", "65536")

    assert (code, no_port) == (USAGE, USAGE)
    assert str(taken) in told
    assert "choose another port" in told
    assert "--port" in why


def test_a_sandbox_says_why_it_cannot_listen_or_go_on(home: Path, tell: Any) -> None:
    (home / "kept.json").write_text("{}", encoding="utf-8")

    for words, why in (
        (["--host", "nowhere.invalid"], "cannot listen"),
        (["--port", "0", "--keep", "kept.json"], "is not a saved sandbox"),
        (["--port", "0", "--keep", "."], "'.': Is a directory"),
    ):
        code, told = tell("sandbox", *words)
        assert code == USAGE
        assert why in told


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["--config", str(ROOT / "keyturn.yml"), "demo"], {}),
        (["run", "--sandbox"], {"KEYTURN_DATA_DIR": ".keyturn"}),
    ],
)
def test_a_folder_that_cannot_be_made_is_named(
    home: Path, tell: Any, words: list[str], env: dict[str, str]
) -> None:
    (home / ".keyturn").write_text("a file, where a folder is needed", encoding="utf-8")

    code, told = tell(*words, **env)

    assert code == USAGE
    assert "cannot be made" in told


@pytest.mark.parametrize("is_folder", [False, True])
def test_messages_that_a_sandbox_cannot_read_again_are_named(
    home: Path, tell: Any, *, is_folder: bool
) -> None:
    kept = home / ".keyturn" / "sandbox" / "sandbox.json"
    (kept if is_folder else kept.parent).mkdir(parents=True)
    if not is_folder:
        kept.write_text("{}", encoding="utf-8")

    code, told = tell("run", "--sandbox", "--port", "0", KEYTURN_DATA_DIR=".keyturn")

    assert code == USAGE
    assert "sandbox.json" in told
    assert "port" not in told


def test_the_demo_is_not_played_with_other_agents(tell: Any) -> None:
    code, told = tell("--config", "keyturn.yml", "demo")

    assert code == USAGE
    assert "without --config" in told
    assert "'keyturn run --sandbox' shows your agents" in told


def test_a_token_of_the_wrong_kind_is_told_where_the_right_one_is(tell: Any) -> None:
    code, told = tell("doctor", SLACK_BOT_TOKEN="xapp-1")

    assert code == 1
    assert "does not begin with 'xoxb-'" in told
    assert "OAuth & Permissions" in told


def test_the_doctor_takes_no_name_for_a_person(tell: Any) -> None:
    code, told = tell("doctor", "--requester", "@dan")

    assert code == USAGE
    assert "'@dan' is not a Slack user id; write one such as U0DAN" in told


def test_an_empty_audit_log_is_not_a_silence(home: Path, tell: Any) -> None:
    (home / ".keyturn" / "valkey").mkdir(parents=True)

    code, told = tell("audit", "export")

    assert code == 0
    assert told == "The audit log has no entries in this time.\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--key", "keyturn/audit+12345678+AAAA"],
        ["--stories"],
        ["bundle.jsonl", "--key", "k", "--checkpoint", "kept.txt"],
    ],
)
def test_what_a_verification_would_not_look_at_is_refused(
    tell: Any, words: list[str]
) -> None:
    code, told = tell("audit", "verify", *words)

    assert code == USAGE
    assert re.search(r"name its FILE|omit FILE", told)


@pytest.mark.parametrize("module", ["keyturn.cli.main", "keyturn.cli.stack"])
def test_ctrl_c_while_it_loads_ends_it_without_a_word(home: Path, module: str) -> None:
    (home / "slow.py").write_text(SLOW, encoding="utf-8")
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
        "redis://127.0.0.1:1/1/2?db=hush",
        "redis+sentinel://:hush@127.0.0.1:1",
        "redis+cluster://",
    ],
)
def test_a_store_url_that_cannot_be_read_is_refused_and_not_shown(
    tell: Any, url: str
) -> None:
    code, told = tell("frozen", KEYTURN_REDIS_URL=url)

    assert code == USAGE
    assert "In a password, write / as %2F" in told
    assert "hush" not in told


async def test_bolt_says_nothing_of_a_token_it_does_not_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-in-the-environment")
    me = Identity(team="T1", bot_id="B1", user="U1", enterprise="")
    config = BotConfig(bot_token="xoxb-1", app_token="xapp-1", seal_key=b"k" * 32)

    async with aiohttp.ClientSession() as session:
        with caplog.at_level(logging.WARNING):
            bolt_app(config, me, session)

    assert not caplog.records


def test_the_first_start_names_everything_that_is_missing(
    home: Path, tell: Any
) -> None:
    (home / "keyturn.yml").unlink()

    code, told = tell("run")

    assert code == USAGE
    listed = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    firsts = ["SLACK_BOT_TOKEN", "SLACK_APP_TOKEN", "There is no file 'policy.yml'"]
    for number, (line, first) in enumerate(zip(listed, firsts, strict=False), 1):
        assert line.startswith(f"{number}. {first}")
    assert listed[3].startswith("4. 'agents' in keyturn.yml names no graph")
    assert "keyturn doctor" in told.splitlines()[-1]
    assert not (home / ".keyturn").exists()


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ({"SLACK_BOT_TOKEN": "xoxb-1"}, ["SLACK_APP_TOKEN"]),
        (
            {"KEYTURN_SLACK_MODE": "http", "SLACK_BOT_TOKEN": "xoxb-1"},
            ["SLACK_SIGNING_SECRET"],
        ),
        ({}, ["SLACK_BOT_TOKEN", "SLACK_APP_TOKEN"]),
    ],
)
def test_a_start_names_only_what_its_mode_needs(
    tell: Any, env: dict[str, str], missing: list[str]
) -> None:
    code, told = tell("run", **env)

    assert code == USAGE
    assert re.findall(r"\d\. (SLACK_\w+) is not set", told) == missing
    assert "policy.yml" not in told


@pytest.mark.parametrize("words", [["bot"], ["gateway"]])
def test_what_runs_for_long_waits_for_its_store_and_a_query_does_not(
    tell: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(usable, "USABLE_WITHIN_S", 1.0)
    # Commands configure their logs.
    lines = list[tuple[object, ...]]()

    def warn(*line: object) -> None:
        lines.append(line)

    monkeypatch.setattr(usable.logger, "warning", warn)
    nowhere = {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0", **TOKENS}

    code, told = tell(*words, **nowhere)
    tell("frozen", **nowhere)

    assert code
    assert "check that Redis runs and that KEYTURN_REDIS_URL names it" in told
    [waited] = lines
    assert "127.0.0.1:1" in waited
