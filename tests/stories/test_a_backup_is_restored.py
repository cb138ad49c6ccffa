"""An operator backs up, loses data, and restores: no call runs twice, and gaps show."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from keyturn.cli.main import USAGE, run
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.config import Settings
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.protocol.wire import Busy, Claimed, ClaimRequest, TurnRef
from keyturn.gateway.resume.ledger import ledger_of
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.gateway.service.report.audit_writing import AuditWriter
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES, Stack, open_stack
from tests.resume.test_restored import SETTINGS, runs, until, waits
from tests.store_secrets import ENV, SECRETS
from tests.streams import audit_entries

pytestmark = pytest.mark.slow

NOW = datetime(2026, 7, 1, tzinfo=UTC)
ANA = Person(team="T1", user="U0ANA")


class Operator:
    """An operator of a gateway whose data is in one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.settings = folder / "keyturn.yml"
        self.settings.write_text(SETTINGS)
        self.file = folder / "backup.tar.gz"

    async def __call__(self, *words: str, **env: str) -> tuple[int, str]:
        self._capsys.readouterr()
        given = ["--config", str(self.settings), *words]
        code = await asyncio.to_thread(run, given, {**ENV, "NO_COLOR": "1", **env})
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err

    async def backs_up(self, *options: str) -> str:
        code, out = await self("backup", str(self.file), *options)
        assert code == 0, out
        return out

    async def restores(self, *options: str) -> str:
        code, out = await self("restore", str(self.file), *options)
        assert code == 0, out
        return out

    async def is_refused(self, *options: str, **env: str) -> str:
        code, out = await self("restore", str(self.file), *options, **env)
        assert code == USAGE, out
        return out

    @asynccontextmanager
    async def gateway(self) -> AsyncGenerator[Stack]:
        """Open the gateway, with its ledger and its audit log."""
        keyring = Keyring.of(Settings.load(self.settings, ENV), *Role)
        checkpoints = self.folder / "checkpoints.sqlite"
        async with EmbeddedEngine(self.folder / "valkey") as engine:
            store = Store(engine.url, secrets=SECRETS, lease_ms=1000)
            store.keyring, store.tree_folder = keyring, self.folder / "audit"
            async with (
                ledger_of(store, str(checkpoints)),
                open_stack(store, checkpoints) as stack,
            ):
                yield stack
                await AuditWriter(store, stack.keys).tick(is_last=True)
            await store.close()

    def loses(self, *names: str) -> None:
        for name in names:
            for found in self.folder.glob(f"{name}*"):
                shutil.rmtree(found) if found.is_dir() else found.unlink()


@pytest.fixture
def operator(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Operator:
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "effects"))
    operator = Operator(tmp_path, capsys)
    Keyring.of(Settings.load(operator.settings, ENV), *Role).make_missing(NOW)
    return operator


async def is_authorized(operator: Operator) -> None:
    """Bring a call to its approval, and back up before it runs."""
    async with operator.gateway() as stack:
        await waits(stack)
        [item] = await stack.items()
        await stack.decide(item)
    await operator.backs_up()
    async with operator.gateway() as stack, stack.working():
        assert "899" in await stack.words()
        await stack.idle()
    assert len(sample_tools.ledger()) == 1


async def is_doubted(operator: Operator) -> None:
    async with operator.gateway() as stack:
        async with stack.working():
            await until(stack, [ItemState.IN_DOUBT])
        found = await audit_entries(stack.store.conn, stack.keys)
        [gap] = [it for it in found if it.name is EventName.SECURITY_DETECTED]
        assert gap.reason == "replayed"
        assert gap.data["name"].startswith("restored from a backup of ")
    assert len(sample_tools.ledger()) == 1
    code, out = await operator("security")
    assert (code, "backup of" in out) == (1, True)
    code, out = await operator("audit", "verify")
    assert code == 0, out


async def test_a_call_that_ran_after_it_does_not_run_again(operator: Operator) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
        # While the gateway runs.
        await operator.backs_up()
        await runs(stack)
    assert "has data" in await operator.is_refused()

    told = await operator.restores("--replace")

    assert "is missing" in told
    assert "The audit log in the folder is kept" in told
    assert "continues to wait, with a warning and without earlier votes" in told
    async with operator.gateway() as stack, stack.working():
        await until(stack, [ItemState.WITHDRAWN])
    assert len(sample_tools.ledger()) == 1


async def test_an_ended_delegation_does_not_come_back(operator: Operator) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
        queues = DelegationService(stack.store)
        await queues.delegate(ANA, "U0BEN", timedelta(days=1))
        await operator.backs_up()
        await queues.take_back(ANA)

    told = await operator.restores("--replace")

    assert "all delegations: people make them again" in told
    async with operator.gateway() as stack:
        assert not await DelegationService(stack.store).given_to("U0BEN")


async def test_a_restore_prints_only_its_report(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await is_authorized(operator)
    # As in a process of its own, where Python prints warnings that nothing handles.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    told = await operator.restores("--replace")

    assert {line[0] for line in told.splitlines()} <= {*"✔✖·"}, told


async def test_no_second_approval_runs_it_again(operator: Operator) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
    await operator.backs_up()
    async with operator.gateway() as stack:
        await runs(stack)
    await operator.restores("--replace")

    async with operator.gateway() as stack:
        [item] = await stack.items()
        assert item.is_restored
        await stack.decide(item)
        [approval] = await stack.approvals()
        asked = ClaimRequest(
            ref=TurnRef(agent="shop", thread="t1", message_id=approval.message_id),
            item_id=item.id,
            tool=item.tool,
            tool_call_id=item.ctx.tool_call_id,
            owner="1" * 32,
        )
        agents = AgentService(stack.store, lambda: RULES)

        async def is_refused() -> bool:
            reply = await agents.claim(asked)
            assert not isinstance(reply, Claimed)
            return not isinstance(reply, Busy)

        assert await stack.states() == [ItemState.AUTHORIZED]
        # Until its lease ends, another worker might be about to write this attempt.
        await eventually(is_refused)
        assert await stack.states() == [ItemState.IN_DOUBT]


@pytest.mark.parametrize(
    "lost", [["valkey"], ["valkey", "checkpoints", "audit"]], ids=["store", "all"]
)
async def test_what_is_lost_leaves_approvals_in_doubt(
    operator: Operator, lost: list[str]
) -> None:
    await is_authorized(operator)
    operator.loses(*lost)

    assert "authorized → in_doubt" in await operator.restores()

    await is_doubted(operator)


async def test_an_interrupted_restore_leaves_doubts(operator: Operator) -> None:
    await is_authorized(operator)
    operator.loses("valkey", "checkpoints", "audit")
    operator.settings.write_text(SETTINGS.replace("sample_tools:", "none:"))

    code, out = await operator("restore", str(operator.file))

    assert (code, "The next gateway puts the approved calls in doubt" in out) == (
        1,
        True,
    )
    operator.settings.write_text(SETTINGS)
    await is_doubted(operator)


async def test_a_backup_has_keys_only_on_demand(operator: Operator) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
    assert "It has no keys" in await operator.backs_up()
    assert operator.file.stat().st_mode & 0o077 == 0
    with tarfile.open(operator.file) as archive:
        assert not [
            it for it in archive.getnames() if "key" in it and "keys.json" not in it
        ]
    assert "KEYTURN_SECRET is not in it" in await operator.backs_up("--with-keys")
    before = sorted(one.read_bytes() for one in operator.folder.rglob("*.key.json"))
    operator.loses("valkey", "checkpoints", "audit", "keys")

    await operator.restores()

    assert before == sorted(
        one.read_bytes() for one in operator.folder.rglob("*.key.json")
    )
    assert before
    async with operator.gateway() as stack:
        assert await stack.states() == [ItemState.PENDING]


async def test_mounted_and_renamed_keys_are_restored(operator: Operator) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
    (operator.folder / "mount").mkdir()
    for one in operator.folder.rglob("*.key.json"):
        mounted = one.rename(operator.folder / "mount" / one.name)
        one.with_name(f"key of {one.name}").symlink_to(mounted)
    before = (await operator("keys", "list"))[1]
    await operator.backs_up("--with-keys")
    operator.loses("valkey", "checkpoints", "audit", "keys", "mount")

    await operator.restores()

    assert (await operator("keys", "list"))[1] == before


async def test_damaged_checkpoints_are_named_and_the_rest_is_backed_up(
    operator: Operator,
) -> None:
    await is_authorized(operator)
    damaged = operator.folder / "checkpoints.sqlite"
    damaged.write_bytes(b"garbage" * 1000)

    code, out = await operator("backup", str(operator.file))

    assert (code, "file is not a database" in out) == (USAGE, True), out
    damaged.unlink()
    await operator.backs_up()


async def test_files_of_another_user_are_named(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operator.gateway() as stack:
        await waits(stack)

    def refused(_: TreeFiles) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/audit/it.tree")

    monkeypatch.setattr(TreeFiles, "size", property(refused))
    for words in ("audit verify", "security", "erase U0ANA", "doctor"):
        code, out = await operator(*words.split())
        assert code, words
        assert "'/audit/it.tree' cannot be used (Permission denied)" in out
        assert "report it" not in out


async def test_a_left_log_of_lost_checkpoints_is_not_mixed_in(
    operator: Operator,
) -> None:
    await is_authorized(operator)
    left = operator.folder / "checkpoints.sqlite-wal"
    operator.loses("valkey", "checkpoints")
    left.write_bytes(b"pages of the lost file")

    assert "belongs to a file that is missing" in await operator.is_refused()

    left.unlink()
    assert "authorized → in_doubt" in await operator.restores()


async def test_an_unsafe_restore_is_refused(operator: Operator, tmp_path: Path) -> None:
    async with operator.gateway() as stack:
        await waits(stack)
    await operator.backs_up()
    other = "ab" * 32
    assert "sealed with another secret" in await operator.is_refused(
        "--replace", KEYTURN_SECRET=other
    )
    assert "is of the tenant 'default'" in await operator.is_refused(
        "--replace", KEYTURN_TENANT="other"
    )
    whole = operator.file.read_bytes()
    for part in (whole[:-100], b"", b"text"):
        operator.file.write_bytes(part)
        refusal = await operator.is_refused("--replace")
        assert "is no complete backup" in refusal
        assert len(refusal.splitlines()) == 1
    operator.file.unlink()
    assert "No such file or directory. Name" in await operator.is_refused("--replace")
    huge = tarfile.TarInfo("store.jsonl")
    huge.size = 10**15
    operator.file.write_bytes(huge.tobuf())
    assert "more than are free" in await operator.is_refused("--replace")
    operator.file.write_bytes(whole)
    async with operator.gateway() as stack:
        process = ProcessInfo(role="bot", where="host 1", tenant="default")
        await stack.store.processes.join(stack.keys, "p", process, seen="0")
        assert "Processes use the store (host 1)" in await operator.is_refused(
            "--replace"
        )
        await stack.store.processes.leave(stack.keys, "p")
        assert await stack.states() == [ItemState.PENDING]
        [item] = await stack.items()
        assert not item.is_restored
