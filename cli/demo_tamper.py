"""Script of the demo for forgeries: somebody writes an approval into the store.

Whoever forges it can read and write all of the store, and has no secret of Twokey.
"""

from __future__ import annotations

import asyncio
from functools import partial

from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, StoryFailed, expect
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.audit_bundling import AuditBundler
from twokey.gateway.service.audit_checking import verify_logs
from twokey.gateway.service.audit_writing import AuditWriter, public_keys, required
from twokey.gateway.service.security_events import security_events
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.resume_jobs import resume_job
from twokey.gateway.store.store import Store
from twokey.gateway.trust.audit_bundle import verify_bundle

_LOOK_S = 0.1
_HOUR_MS = 3_600_000


async def tamper(context: DemoContext) -> None:
    """Somebody writes "authorized" into the store; nothing runs, and it is told."""
    _, approval = await context.ask()
    store = context.demo.stack.twokey.store
    keys = store.keys_of_approval(approval.id)
    if keys is None:
        raise StoryFailed(f"Nobody knows where {approval.id!r} is kept.")
    await _forge(store, keys, approval)
    context.say("store.forged", approval=approval.id, state=ItemState.AUTHORIZED)
    found = await _noticed(store, approval)
    context.say(
        EventName.SECURITY_DETECTED,
        approval=approval.id,
        kind=found.reason,
        about=found.data.get("about", ""),
    )
    expect(not context.effects(), "A forged authorization ran.")
    await _verify_log(context, store, keys, approval.tenant)
    await _verify_bundle(context, store, approval.tenant)
    expect(not context.effects(), "A forged authorization ran.")


async def _forge(store: Store, keys: Keys, approval: Approval) -> None:
    """Authorize a call and wake its agent, as one who knows the formats would."""
    head, now_ms = keys.head(approval.id), await store.conn.now_ms(keys.head(""))
    write = store.conn.command
    await write("HSET", head, "0:s", "authorized", "0:t", now_ms)
    await write("HSET", head, "0:l", now_ms + _HOUR_MS)
    await write("HINCRBY", head, "rev", 1)
    if (job := resume_job(approval)) is not None:
        await write("XADD", keys.jobs, "*", "j", job.model_dump_json())


async def _noticed(store: Store, approval: Approval) -> Event:
    """Wait for the security event about an approval."""
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while True:
            async for event in security_events(store, approval.tenant):
                if approval.id in {event.approval, event.data.get("approval")}:
                    return event
            await asyncio.sleep(_LOOK_S)


async def _verify_log(
    context: DemoContext, store: Store, keys: Keys, tenant: str
) -> None:
    """Verify the audit log as `twokey audit verify` does, once all of it is signed."""
    writer = AuditWriter(store, keys, tenant=tenant)
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while True:
            await writer.tick(is_last=True)
            [log] = await verify_logs(store, tenant)
            # The gateway may write at this moment; then it is this one's turn later.
            if log.size and not log.unsigned:
                break
            await asyncio.sleep(_LOOK_S)
    expect(not log.problems, "The audit log does not verify.")
    context.say("audit.verified", entries=log.size, checkpoints=log.checkpoints)


async def _verify_bundle(context: DemoContext, store: Store, tenant: str) -> None:
    """Export the log, verify it by public keys alone, and change one byte of it."""
    lines = list[bytes]()
    await AuditBundler(store, tenant=tenant).export(lines.append)
    bundle = b"".join(lines).splitlines(keepends=True)
    verified = partial(verify_bundle, keys=public_keys(required(store)[0]))
    report = verified(bundle)
    expect(report.is_verified, f"The export does not verify: {report.problem}")
    context.say("export.verified", lines=len(bundle))
    at = len(bundle) // 2
    changed = bytearray(bundle[at])
    changed[len(changed) // 2] ^= 1
    report = verified([*bundle[:at], bytes(changed), *bundle[at + 1 :]])
    expect(not report.is_verified, "A changed export verifies.")
    expect(report.bad_index is not None, "The first bad entry is not named.")
    context.say("export.refused", first_bad_index=report.bad_index, why=report.problem)
