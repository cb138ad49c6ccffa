"""Repair data loss or a restored backup when an operator requests it."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.gateway.resume.recovery import Recovery, RecoveryReport
from twokey.gateway.resume.restore_detection import Consistency, RestoreDetector
from twokey.gateway.resume.runners import Runners
from twokey.gateway.service.recovering import Found, RecoveryService
from twokey.gateway.store.store import Store


@dataclass(frozen=True)
class RepairReport:
    """What a repair changed, or would change.

    Attributes:
        consistency: whether store or checkpoints are older than the other.
        doubted: calls whose record may be older than what happened.
        report: threads whose records and checkpoints do not match.
    """

    consistency: Consistency
    doubted: tuple[Found, ...]
    report: RecoveryReport


async def repair_losses(
    store: Store,
    runners: Runners,
    *,
    tenant: str,
    is_dry: bool,
    is_restored: bool,
) -> RepairReport:
    """Doubt, end and queue what does not match, and return what it was.

    The caller asserts that no gateway with other checkpoints uses the store.

    Args:
        store: the gateway's store.
        runners: the agents and their checkpoints.
        tenant: whose.
        is_dry: only say what would be done.
        is_restored: the store is older than what happened, also where that cannot be
            seen: copies of both from one moment match.
    """
    records = RecoveryService(store, tenant=tenant)
    detectors: list[RestoreDetector] = []
    consistency, doubted = Consistency.SAME, list[Found]()
    for part in store.parts_of(tenant):
        found = Consistency.SAME
        if runners.saver is not None:
            one = RestoreDetector(store, runners.saver, tenant=tenant, part=part)
            found = await one.compare()
            detectors.append(one)
        # Each part may be older by itself; that the store is, is what people see.
        if consistency is not Consistency.STORE_IS_OLDER:
            consistency = found if found is not Consistency.SAME else consistency
        if is_restored or found is Consistency.STORE_IS_OLDER:
            doubted += await records.doubt_all(part, is_dry=is_dry)
    recovery = Recovery(store, runners, tenant=tenant)
    if is_dry:
        return RepairReport(consistency, tuple(doubted), await recovery.compare())
    report = await recovery.recover(is_only_process=True)
    for one in detectors:
        # Last: after a crash before this, the next repair still sees the difference.
        await one.equalize()
    return RepairReport(consistency, tuple(doubted), report)
