"""A check of the doctor that crashes ends no other check."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from keyturn.cli import doctor
from keyturn.cli.main import run

NOWHERE = {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0"}
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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    error: BaseException,
) -> None:
    (tmp_path / "keyturn.yml").write_text(SETTINGS)
    (tmp_path / ".keyturn").mkdir()

    def crash(*_args: object, **_named: object) -> None:
        raise error

    async def crash_later(*_args: object, **_named: object) -> None:
        raise error

    is_async = inspect.iscoroutinefunction(getattr(doctor, check))
    monkeypatch.setattr(doctor, check, crash_later if is_async else crash)

    ended = run(["--config", str(tmp_path / "keyturn.yml"), "doctor"], NOWHERE)

    said = "".join(capsys.readouterr())
    assert f"{CHECKS[check]}: this check crashed" in said
    assert type(error).__name__ in said
    assert "hunter2" not in said
    assert "Slack secrets: " in said
    assert ended == 1
