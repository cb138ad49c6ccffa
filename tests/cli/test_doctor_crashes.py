"""A check of the doctor that crashes ends no other check."""

from __future__ import annotations

import inspect
from unittest.mock import AsyncMock, Mock

import pytest

from keyturn.cli import doctor
from tests.cli.conftest import Shell

SETTINGS = """\
agents: {billing: {graph: "billing.py:graph"}}
policy:
  version: 1
  defaults: {needs: U0ANA}
"""
CHECKS = {
    "check_packages": "packages",
    "nothing_is_here": "store",
    "_secret": "secret",
    "_keys": "keys",
    "_encryption": "store",
    "open_configured": "store",
    "check_checkpoints": "checkpoints",
    "_graph": "agent billing",
}


class Panic(BaseException):
    """What a library in Rust raises."""


@pytest.mark.parametrize("error", [RuntimeError("hunter2"), Panic("hunter2")])
@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_crashes_ends_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, check: str, error: BaseException
) -> None:
    shell.write(SETTINGS)
    (shell.folder / ".keyturn").mkdir()

    is_async = inspect.iscoroutinefunction(getattr(doctor, check))
    mock = AsyncMock if is_async else Mock
    monkeypatch.setattr(doctor, check, mock(side_effect=error))

    ended, *told = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0")

    said = "".join(told)
    assert f"{CHECKS[check]}: this check crashed" in said
    assert type(error).__name__ in said
    assert "hunter2" not in said
    assert "Slack secrets: " in said
    assert ended == 1
