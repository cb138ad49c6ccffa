"""Check the audit log, its segments and its tree for ``twokey doctor``."""

from __future__ import annotations

import asyncio

from twokey.cli.store_access import open_configured
from twokey.gateway.config import Settings
from twokey.gateway.errors import AuditUnreadable
from twokey.gateway.service.audit_writing import public_keys, required
from twokey.gateway.store.audit_note import is_overdue
from twokey.gateway.store.audit_tree import TreeFiles
from twokey.gateway.store.connection import number
from twokey.gateway.store.store import Store
from twokey.gateway.trust.keyring import Keyring

OVERDUE = (
    "Entries of the audit log have waited for their checkpoint for more than ten "
    "minutes. Nothing is lost: they stay in the store. See 'audit.not_written' in the "
    "log of the gateways: the folder is full, read-only, gone or of another user."
)


async def check_audit(settings: Settings) -> str:
    """Return where the audit log is, and how much of it is signed.

    Raises:
        AuditUnreadable: when segments or the tree are not what was signed, or nobody
            signs what is new.
    """
    async with open_configured(settings, keyring=Keyring.of(settings)) as store:
        left = sealed = 0
        for keys in store.parts_of(settings.tenant):
            if await is_overdue(store.conn, keys) and await _gateways(store, settings):
                raise AuditUnreadable(OVERDUE)
            log = store.audit(keys)
            left += number(await store.conn.command("XLEN", keys.audit))
            # With a whole chain, or it raises.
            sealed += len(await log.headers(await log.sealed()))
        signed = await asyncio.to_thread(_signed, store, settings.tenant)
    tree = f"; {signed:,} entries are signed" if signed else "; none is signed yet"
    if settings.audit_folder is None and not sealed:
        return (
            f"all {left:,} entries are in the store's memory; 'audit_folder' in "
            f"twokey.yml moves them into sealed files{tree}"
        )
    return f"{sealed} sealed segments, and {left:,} entries in the store{tree}"


def _signed(store: Store, tenant: str) -> int:
    keyring, folder = required(store)
    signed = 0
    for keys in store.parts_of(tenant):
        files = TreeFiles(folder, keys.shard)
        name = files.name()
        # Another gateway may have it, in a folder of its own.
        if name is not None:
            signed += files.checked(name, public_keys(keyring))[0].size
    return signed


async def _gateways(store: Store, settings: Settings) -> bool:
    """Return whether a gateway runs: without one, entries wait for its start."""
    found = await store.processes.read(store.keys_of_tenant(settings.tenant))
    return any(one.role == "gateway" for one, _ in found.alive.values())
