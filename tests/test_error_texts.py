"""The words of an agent's error are shown where a developer reads, and nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Literal

import pytest

from keyturn.cli.command_context import CommandContext, configure_logs
from keyturn.gateway.config import Settings
from keyturn.gateway.failures import log_failure
from keyturn.gateway.logs import LogSettings, write_logs

SECRET = "iban DE44\x1b[31m\nevil"


pytestmark = pytest.mark.usefixtures("logging_kept")


def provider() -> None:
    raise ValueError(SECRET)


def fail() -> None:
    try:
        provider()
    except ValueError as error:
        logger = logging.getLogger("keyturn.gateway.x")
        log_failure(logger, error, "job.failed job=%s", "7")


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_production_log_never_shows_the_words_of_an_error(
    capsys: pytest.CaptureFixture[str], format_: Literal["text", "json"]
) -> None:
    write_logs(LogSettings(format=format_))

    fail()

    (line,) = capsys.readouterr().err.splitlines()
    assert "DE44" not in line
    assert "ValueError [" in line


@pytest.mark.parametrize("format_", ["text", "json"])
def test_the_words_of_an_error_that_a_library_logs_are_for_developers_too(
    capsys: pytest.CaptureFixture[str], format_: Literal["text", "json"]
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
    assert "ValueError [test_error_texts.py:" in line
    assert "ValueError: iban DE44" in shown
    assert "\x1b" not in shown


def test_a_developers_log_shows_words_and_places_and_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_logs(LogSettings(), shows_errors=True)

    fail()

    told = capsys.readouterr().err
    assert "job.failed job=7" in told
    assert "ValueError: iban DE44\\x1b[31m\nevil\n" in told
    assert "test_error_texts.py" in told
    assert "\x1b" not in told


def test_a_developers_json_log_has_the_trace_in_its_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    capsys: pytest.CaptureFixture[str],
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
