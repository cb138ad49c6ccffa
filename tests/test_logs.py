"""What happens is written once, in lines that people or collectors can read."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Literal

import pytest

from keyturn.cli.command_context import CommandContext, configure_logs
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.logs import REPEATED_AFTER_S, LogSettings, Repeats, write_logs

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    item.done item=1\n")


Capture = pytest.CaptureFixture[str]


def test_a_line_says_when_how_important_and_what(capsys: Capture) -> None:
    write_logs(LogSettings())

    logging.getLogger("keyturn.gateway.x").info("item.done item=%s", 1)

    assert LINE.fullmatch(capsys.readouterr().err)


def test_json_names_the_fields_of_an_event(capsys: Capture) -> None:
    write_logs(LogSettings(format="json"))

    logging.getLogger("keyturn.bot.x").warning(
        "click.decided user=%s index=%d wait_s=%.1f by=%r", "U0É\n", 3, 0.25, "é"
    )

    (line,) = capsys.readouterr().err.splitlines()
    row = json.loads(line)
    assert row.pop("at").endswith("Z")
    assert row == {
        "level": "warning",
        "logger": "keyturn.bot.x",
        "event": "click.decided",
        "user": "U0É\n",
        "index": "3",
        "wait_s": "0.2",
        "by": "'é'",
    }


def test_json_controls_no_line_and_no_terminal(capsys: Capture) -> None:
    write_logs(LogSettings(format="json"))
    hostile = "a\u2028b\x85c\x9b31md\u202ee\U000e0041f\ud800É"

    logging.getLogger("keyturn.bot.x").warning("click.decided user=%s", hostile)

    written = capsys.readouterr().err
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    assert json.loads(written)["user"] == hostile


def test_json_keeps_other_values_and_their_errors(capsys: Capture) -> None:
    write_logs(LogSettings(format="json"))

    error = ValueError("x")
    logging.getLogger("aiohttp").error("It broke 100%%", exc_info=error)

    row = json.loads(capsys.readouterr().err)
    assert row["message"] == "It broke 100%%"
    assert row["error"] == "ValueError []"


def test_a_field_cannot_begin_another_line(capsys: Capture) -> None:
    write_logs(LogSettings())

    logging.getLogger("keyturn.bot.x").info("click.decided user=%s", "U0\n2026 é\u202e")

    assert capsys.readouterr().err.endswith("user=U0\\n2026 é\\u202e\n")


def test_the_environment_says_how() -> None:
    env = {"KEYTURN_LOG_LEVEL": "error", "KEYTURN_LOG_FORMAT": "json"}

    assert Settings.load(None, env).log == LogSettings(level="error", format="json")
    with pytest.raises(SettingsError, match="KEYTURN_LOG_LEVEL"):
        Settings.load(None, {"KEYTURN_LOG_LEVEL": "loud"})


def test_a_warning_that_is_repeated_is_written_once_a_minute_and_counted() -> None:
    now_s = 0.0
    repeats = Repeats(clock=lambda: now_s)

    def line(words: str, level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord(
            "keyturn.bot.x", level, "x.py", 1, "a.b why=%s", (words,), None
        )

    first = [repeats.filter(line("wrong")) for _ in range(1000)]
    other = repeats.filter(line("late"))
    news = [repeats.filter(line("wrong", logging.INFO)) for _ in range(3)]
    now_s = REPEATED_AFTER_S
    again = line("wrong")

    assert (first.count(True), other, news) == (1, True, [True, True, True])
    assert repeats.filter(again)
    assert again.__dict__["keyturn_repeated"] == 999
    for number in range(2000):
        repeats.filter(line(str(number)))
    assert repeats.filter(line("wrong"))


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_repeated_line_with_a_percent_sign_is_written_with_its_count(
    form: Literal["text", "json"], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "GET /a%20b failed: disk at 100% of quota"
    write_logs(LogSettings(format=form))
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    logging.getLogger().handlers[0].filters[:] = [Repeats(clock=lambda: now_s)]

    logging.getLogger("x").warning(words)
    logging.getLogger("x").warning(words)
    now_s = REPEATED_AFTER_S
    logging.getLogger("x").warning(words)

    _, last = capsys.readouterr().err.splitlines()
    if form == "json":
        row = json.loads(last)
        assert (row["message"], row["repeated"]) == (words, "1")
    else:
        assert last.endswith(f"{words} repeated=1")


def test_a_malformed_line_does_not_break_its_writer(capsys: Capture) -> None:
    write_logs(LogSettings())
    malformed = "count %d"

    logging.getLogger("x").warning(malformed, "many")

    assert "--- Logging error ---" in capsys.readouterr().err


SECRET = "iban DE44\x1b[31m\nevil"


def provider() -> None:
    raise ValueError(SECRET)


def fail() -> None:
    try:
        provider()
    except ValueError as error:
        logger = logging.getLogger("keyturn.gateway.x")
        log_failure(logger, error, "job.failed job=%s", "7")


@pytest.mark.parametrize("format_", ["text", "json"])
def test_the_words_of_an_error_that_a_library_logs_are_for_developers_too(
    capsys: Capture, format_: Literal["text", "json"]
) -> None:
    def fail_in_a_library() -> None:
        try:
            provider()
        except ValueError:
            logging.getLogger("aiohttp.server").exception("Error handling request")

    write_logs(LogSettings(format=format_))
    fail_in_a_library()
    (line,) = capsys.readouterr().err.splitlines()
    write_logs(LogSettings(format=format_), shows_errors=True)
    fail_in_a_library()
    shown = capsys.readouterr().err

    assert "DE44" not in line
    assert "Error handling request" in line
    assert "ValueError [test_logs.py:" in line
    assert "ValueError: iban DE44" in shown
    assert "\x1b" not in shown


def test_a_developers_log_has_no_control_characters(capsys: Capture) -> None:
    write_logs(LogSettings(), shows_errors=True)

    fail()

    told = capsys.readouterr().err
    assert "job.failed job=7" in told
    assert "ValueError: iban DE44\\x1b[31m\nevil\n" in told
    assert "test_logs.py" in told
    assert "\x1b" not in told
    write_logs(LogSettings(format="json"), shows_errors=True)
    fail()
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: iban DE44" in json.loads(line)["trace"]


@pytest.mark.parametrize(
    ("yaml", "debug", "insecure_dev", "is_shown"),
    [
        ("", False, False, False),
        ("", True, False, True),
        ("", False, True, True),
        ("slack: {api_url: 'http://127.0.0.1:4000/api/'}", False, False, True),
    ],
)
def test_debug_development_and_the_sandbox_show_the_words(
    tmp_path: Path,
    capsys: Capture,
    yaml: str,
    *,
    debug: bool,
    insecure_dev: bool,
    is_shown: bool,
) -> None:
    (tmp_path / "keyturn.yml").write_text(yaml)
    settings = Settings.load(tmp_path / "keyturn.yml", {})
    session = CommandContext(env={}, debug=debug)

    configure_logs(session, settings, insecure_dev=insecure_dev)
    fail()

    assert ("DE44" in capsys.readouterr().err) is is_shown
