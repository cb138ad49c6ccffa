"""A policy follows its file, and no accident of a file ever loosens it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.config import PolicySource, Settings
from keyturn.gateway.errors import PolicyError, SettingsError
from keyturn.gateway.policy.evaluate import listed_tier
from keyturn.gateway.policy_file import Change, PolicyFile, followed
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.streams import audit_entries

OLD = "version: 1\ntools: {pay: {tier: approve}}\n"
NEW = "version: 1\ntools: {pay: {tier: escalate}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a policy file that can be used."""
    file = tmp_path / "policy.yml"
    file.write_text(OLD, encoding="utf-8")
    return file


def opened(path: Path, under: str = "") -> PolicyFile:
    return PolicyFile(PolicySource(path=path, under=under))


def tier(policy: PolicyFile) -> Tier:
    return listed_tier(policy(), agent="a", tool="pay")


def look_until_stable(policy: PolicyFile) -> Change | None:
    """Check until the file is unchanged; return the outcome."""
    return policy.look() or policy.look()


def test_a_changed_file_is_taken_once_it_stands_still(path: Path) -> None:
    policy = opened(path)
    before = policy().digest

    path.write_text(NEW, encoding="utf-8")
    first = policy.look()
    seen_early = tier(policy)
    second = policy.look()

    assert (first, seen_early) == (None, Tier.APPROVE)
    assert second == Change(was=before, now=policy().digest)
    assert (before != policy().digest, tier(policy)) == (True, Tier.ESCALATE)
    assert policy.look() is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "policy.yml:1: 'version' is missing; add it."),
        ("version: 1\ntools: {pay: {teir: auto}}\n", "policy.yml:2: Unknown key"),
    ],
)
def test_a_bad_policy_leaves_the_old_one(path: Path, text: str, why: str) -> None:
    policy = opened(path)
    before = policy().digest

    path.write_text(text, encoding="utf-8")
    change = look_until_stable(policy)

    assert change is not None
    assert why in change.why
    assert (change.was, change.now, policy().digest) == (before, before, before)
    assert look_until_stable(policy) is None


def test_an_unreadable_file_leaves_the_old_policy(path: Path) -> None:
    policy = opened(path)

    path.unlink()
    gone = look_until_stable(policy)
    path.write_bytes(b"version: 1\n# \xff\n")
    garbled = look_until_stable(policy)
    path.unlink()
    path.mkdir()
    folder = look_until_stable(policy)

    assert gone is not None
    assert "There is no file" in gone.why
    assert garbled is not None
    assert "policy.yml:2: This is not UTF-8" in garbled.why
    assert folder is not None
    assert "cannot be read" in folder.why
    assert tier(policy) is Tier.APPROVE


def test_a_mended_file_is_told_even_when_it_says_what_it_said(path: Path) -> None:
    policy = opened(path)
    path.write_text("", encoding="utf-8")
    assert look_until_stable(policy)

    path.write_text(OLD, encoding="utf-8")
    change = look_until_stable(policy)

    assert change == Change(was=policy().digest, now=policy().digest)


def test_the_policy_inside_the_settings_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "keyturn.yml"
    inline = "policy:\n  version: 1\n  tools: {{pay: {{tier: {}}}}}\n"
    path.write_text(inline.format("approve"), encoding="utf-8")
    policy = PolicyFile(Settings.load(path, {}).policy)

    path.write_text(inline.format("deny"), encoding="utf-8")
    assert look_until_stable(policy)
    taken = tier(policy)
    path.write_text("tenant: acme\n", encoding="utf-8")
    change = look_until_stable(policy)

    assert taken is Tier.DENY
    assert change is not None
    assert "keyturn.yml:1: 'policy' is missing." in change.why
    assert tier(policy) is Tier.DENY


def test_a_pipe_is_read_once_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "policy.yml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(OLD,))
    writer.start()

    policy = opened(pipe)
    writer.join()

    assert policy.look() is None
    assert tier(policy) is Tier.APPROVE


def test_a_start_without_a_policy_fails(tmp_path: Path, path: Path) -> None:
    with pytest.raises(SettingsError):
        opened(tmp_path / "none.yml")
    path.write_text("", encoding="utf-8")
    with pytest.raises(PolicyError):
        opened(path)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def told(store: Store) -> list[Event]:
    return await audit_entries(store.conn, store.keys_of_tenant("acme"))


async def test_the_start_and_each_change_are_logged_and_in_the_audit_log(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    policy = opened(path)
    before = policy().digest

    async with followed(policy, store, tenant="acme", every_s=0.02):
        write(path, NEW)
        await eventually(lambda: _has(store, 2))
        write(path, "")
        await eventually(lambda: _has(store, 3))

    after = policy().digest
    first, loaded, refused = await told(store)
    assert (first.name, first.data["was"]) == (EventName.POLICY_LOADED, "")
    assert first.policy_digest == before
    assert loaded.name is EventName.POLICY_LOADED
    assert (loaded.data["was"], loaded.policy_digest) == (before, after)
    assert json.loads(loaded.data["roles"]) == {}
    assert loaded.data["process"].endswith(f":{os.getpid()}")
    assert refused.name is EventName.POLICY_REFUSED
    assert (refused.data["was"], refused.policy_digest) == (after, after)
    assert "policy.yml:1: 'version' is missing; add it." in refused.reason
    lines = [record for record in caplog.records if record.name.endswith("policy_file")]
    levels = [logging.INFO, logging.WARNING, logging.ERROR]
    assert [record.levelno for record in lines] == levels
    assert f"policy.loaded was={before} now={after}" in caplog.text
    assert f"policy.refused kept={after} why={path}:1" in caplog.text


async def test_a_slow_disk_holds_up_nobody(store: Store, path: Path) -> None:
    disk = threading.Event()
    looked = threading.Event()

    class Slow(PolicyFile):
        def look(self) -> Change | None:
            looked.set()
            disk.wait(timeout=60)
            return super().look()

    policy = Slow(PolicySource(path=path))
    async with followed(policy, store, tenant="acme", every_s=0.02):
        await eventually(lambda: _is_set(looked))

        pong = await asyncio.wait_for(store.conn.command("PING"), timeout=30)
        in_force = tier(policy)

        assert not disk.is_set()
        disk.set()
    assert (pong, in_force) == (True, Tier.APPROVE)


async def _has(store: Store, count: int) -> bool:
    return len(await told(store)) == count


async def _is_set(event: threading.Event) -> bool:
    return event.is_set()
