"""The doctor reports whether texts are encrypted in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keyturn.cli.command_context import CommandContext
from keyturn.cli.doctor import run_checks
from keyturn.cli.reviewer_checks import Check, State


@pytest.mark.parametrize(
    ("is_on", "state"), [("true", State.GOOD), ("false", State.SKIPPED)]
)
def test_the_doctor_says_whether_the_store_is_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: str, state: State
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keyturn.yml").write_text(f"encrypt_store: {is_on}")

    async def looked() -> Check:
        command = CommandContext({}, None, debug=False)
        async for check in run_checks(command, post=False):
            if check.name == "encryption":
                return check
        raise AssertionError("the doctor did not say it")

    assert asyncio.run(looked()).state is state
