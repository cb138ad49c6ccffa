"""A program that waits for its gateway names it."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.program_runs import Drive
from keyturn.gateway.setting_forms import RetrySettings


async def test_what_waits_names_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    run = RunRef(agent="support", thread="t1")
    drive = Drive(run, cast("Any", None), None)
    error = ThreadUnavailable("nothing listens there")
    error.__cause__ = StoreUnavailable("did not answer")

    with caplog.at_level(logging.WARNING):
        assert drive.pause_s(error, RetrySettings(), "https://gateway.example")

    assert "run.waiting gateway=https://gateway.example agent=support" in caplog.text
    assert "nothing listens there" in caplog.text


async def test_what_others_say_of_it_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = RunRef(agent="support", thread="t1")
    drive = Drive(run, cast("Any", None), None)

    with caplog.at_level(logging.WARNING):
        assert drive.pause_s(ConnectionError("a secret"), RetrySettings(), "")

    assert "error=ConnectionError" in caplog.text
    assert "a secret" not in caplog.text
