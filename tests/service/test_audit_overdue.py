"""A tree that cannot be written any more is reported, for any reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keyturn.cli.command_context import CommandContext
from keyturn.cli.doctor import run_checks
from keyturn.cli.reviewer_checks import Check, State
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.service.report.process_check import registered
from keyturn.gateway.store.audit import log as audit_log
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import AuditHarness

GATEWAY = ProcessInfo(role="gateway", where="here:1", tenant="default")


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


async def test_a_folder_that_is_gone_is_an_alarm_once_nobody_signs(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.put(100)
    await house.writer.tick()
    shutil.rmtree(house.files.folder)
    await house.put(1)
    # Another machine may have the tree, and sign.
    await house.writer.tick(is_last=True)
    assert house.store.security.counts == {}

    monkeypatch.setattr(audit_log, "OVERDUE_MS", -1)
    await house.writer.tick(is_last=True)
    await house.writer.tick(is_last=True)

    assert house.store.security.counts == {SecurityKind.STALLED: 1}


async def doctor_says(house: AuditHarness) -> Check:
    env = {
        "KEYTURN_REDIS_URL": house.store.conn.url,
        "KEYTURN_SECRET": house.store.conn.secrets[0].hex(),
        "KEYTURN_DATA_DIR": str(house.folder),
    }
    checks = run_checks(CommandContext(env, None, debug=False), post=False)
    return next(iter([one async for one in checks if one.name == "audit"]))


async def test_the_doctor_says_that_nobody_signs_while_a_gateway_runs(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(house.folder)
    (house.folder / "keyturn.yml").write_text("{}")
    await house.put(100)
    await house.writer.tick()
    await house.put(1)
    monkeypatch.setattr(audit_log, "OVERDUE_MS", -1)
    # The gateway signs when it starts, and the rest at its end.
    assert (await doctor_says(house)).state is State.GOOD

    async with registered(house.store, GATEWAY):
        found = await doctor_says(house)

    assert found.state is State.BAD
    assert "audit.not_written" in found.text
