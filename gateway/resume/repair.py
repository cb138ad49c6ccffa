"""Repair data loss or a restored backup when an operator requests it."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.gateway.resume.recovery import Look, Recovery
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.sides import Fit, Sides
from twokey.gateway.service.recovering import Found, RecoveryService
from twokey.gateway.store.store import Store


@dataclass(frozen=True)
class Repaired:
    """What a repair changed, or would change.

    Attributes:
        fit: how store and checkpoints stood to each other.
        doubted: calls whose record may be older than what happened.
        look: threads whose two sides did not fit.
    """

    fit: Fit
    doubted: tuple[Found, ...]
    look: Look


async def repaired(
    store: Store,
    runners: Runners,
    *,
    tenant: str,
    is_dry: bool,
    is_restored: bool,
) -> Repaired:
    """Doubt, end and queue what does not fit, and return what it was.

    Whoever calls this says that no gateway with other checkpoints uses the store.

    Args:
        store: the one side.
        runners: the agents, and the other side.
        tenant: whose.
        is_dry: only say what would be done.
        is_restored: the store is older than what happened, also where that cannot be
            seen: a copy of both sides from one moment fits.
    """
    sides = None
    if runners.saver is not None:
        sides = Sides(store, runners.saver, tenant=tenant)
    fit = Fit.SAME if sides is None else await sides.compare()
    doubted: list[Found] = []
    if is_restored or fit is Fit.STORE_IS_OLDER:
        records = RecoveryService(store, tenant=tenant)
        doubted = await records.doubt_all(is_dry=is_dry)
    recovery = Recovery(store, runners, tenant=tenant)
    if is_dry:
        return Repaired(fit, tuple(doubted), await recovery.compare())
    look = await recovery.look(is_alone=True)
    if sides is not None:
        await sides.align()
    return Repaired(fit, tuple(doubted), look)
