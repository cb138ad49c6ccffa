"""A gateway writes the audit tree by itself, and signs the rest when it stops."""

from __future__ import annotations

from pathlib import Path

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.service.report.audit_reading import verify_log_of
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.store import Store
from tests.store_secrets import SECRETS

POLICY = "version: 1\ndefaults: {tier: deny}\n"


async def test_what_happened_is_signed_when_the_gateway_has_stopped(
    store: Store, tmp_path: Path
) -> None:
    keys = store.keys_of_tenant("default")
    event = Event(name=EventName.RUN_STARTED, tenant="default", agent="a", thread="t")

    for _ in range(2):
        async with Keyturn(
            policy=load_policy(POLICY, "p"),
            url=store.conn.url,
            secrets=SECRETS,
            data_dir=tmp_path,
            insecure_dev=True,
        ) as keyturn:
            await keyturn.store.outbox(keys, reader="r").put(event)
            store.keyring = keyturn.store.keyring

    store.tree_folder = tmp_path / "audit"
    found = await verify_log_of(store, "default")
    files = TreeFiles(tmp_path / "audit", keys.tenant)
    assert (found.problems, found.unsigned) == ([], 0)
    assert found.size == files.size >= 3
    names = [event.name async for event in store.audit(keys).entries()]
    # The signing keys are logged once, and again only if they change.
    assert names.count(EventName.KEYS_CHANGED) == 1
    assert len(files.notes()) >= 2
    # If there are segments, the folder has the actor and the reason.
    assert files.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in files.folder.iterdir())
