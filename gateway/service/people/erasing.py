"""Erase the data of an approval or a person, and keep the audit log verifiable.

An approval is erased whole: its record with its data key, the verdicts on its turn, and
the reasons of rejections. Only ended approvals in threads whose run has ended are
erased, because an agent may still ask for the results of the others.
"""

from __future__ import annotations

import re
from contextlib import aclosing

from pydantic import Field

from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.service.submit.submitting import erased_turn
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.erasing import (
    Wanted,
    erase_approval,
    erase_entries,
    is_asked_by,
)

_USER = re.compile(r"[UW][A-Z0-9]{2,}")

_GONE = "gone"
_PAGE = 500

WHY_KEPT = {
    "open": "something of it is still to happen; decide it, or let it expire, first",
    "running": "the run of its thread has not ended; its agent may ask for the result",
    "moved": "it changed at this moment; try again",
    "corrupt": "nobody can read its record; it is dropped 30 days after it was set "
    "aside",
}


class Erasure(Record):
    """The result of an erasure, or of a dry run.

    Attributes:
        approvals: ids of the erased approvals.
        gone: those of them whose record was erased before or has expired.
        kept: ids of the approvals that were not erased, with the reasons.
        entries: number of audit entries whose actor, words and details are erased.
        live: number of matching entries that are still in the store, where they cannot
            be changed.
    """

    approvals: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    kept: dict[str, str] = Field(default_factory=dict)
    entries: int = 0
    live: int = 0


class Eraser(TenantService):
    """Erases data of a tenant's approvals and people."""

    async def erase(self, what: str, *, by: str, is_dry_run: bool) -> Erasure:
        """Erase an approval, or all approvals that a person requested.

        Args:
            what: id of an approval, or Slack id of a person.
            by: the operator, for the audit log.
            is_dry_run: change nothing, and return the result an erasure would have.

        Raises:
            ValueError: when ``what`` is neither, or an unknown approval.
            StoreUnavailable: when the store does not answer.
            AuditUnreadable: see `erase_entries`.
        """
        is_person = _USER.fullmatch(what) is not None
        if not is_person and not await self._is_known(what):
            raise ValueError(
                f"The tenant {self._tenant!r} has no approval {what!r} (ap_…) and no "
                "audit entry about one, and it is no id of a Slack user (U0DAN); "
                "compare the id and the settings"
            )
        ids = await self._asked_by(what) if is_person else [what]
        kept: dict[str, str] = {}
        gone: list[str] = []
        for one in dict.fromkeys(ids):
            why = await self._erase(one, by, is_dry_run=is_dry_run, is_person=is_person)
            if why == _GONE:
                gone.append(one)
            elif why:
                kept[one] = WHY_KEPT[why]
        erased = tuple(dict.fromkeys(one for one in ids if one not in kept))
        wanted = Wanted(self._tenant, frozenset(erased), what if is_person else "")
        entries, live = await erase_entries(
            self._store, self._keys, wanted, is_dry_run=is_dry_run
        )
        return Erasure(
            approvals=erased, gone=tuple(gone), kept=kept, entries=entries, live=live
        )

    async def _erase(
        self, approval_id: str, by: str, *, is_dry_run: bool, is_person: bool
    ) -> str:
        """Erase one approval; return why it is kept or gone, "" if it is erased."""
        try:
            loaded = await self._load(approval_id)
        except CorruptRecord:
            return "corrupt"
        if loaded is None:
            # Only its entries in the audit log are left.
            return _GONE
        found = loaded.approval
        outcome = await erase_approval(
            self._store,
            self._keys,
            found,
            over=erased_turn(self._store.sealing, found),
            by=by,
            is_person=is_person,
            is_dry_run=is_dry_run,
        )
        return "" if outcome == "erased" else outcome

    async def _is_known(self, approval_id: str) -> bool:
        """Return whether the approval exists or existed."""
        try:
            if await self._load(approval_id) is not None:
                return True
        except CorruptRecord:
            return True
        # Without this check, an id with a typo would be reported as erased.
        async with aclosing(self._store.audit(self._keys).entries()) as entries:
            async for event in entries:
                if event.approval == approval_id:
                    return True
        return False

    async def _asked_by(self, user: str) -> list[str]:
        """Return the approvals that a person requested, including erased ones."""
        # From the log, which has every opened approval.
        named, found = dict[str, None](), list[str]()
        async for event in self._store.audit(self._keys).entries():
            if is_asked_by(self._store, event, user):
                # Its record is gone; its entries in the log may not be erased yet.
                found.append(event.approval)
            elif event.approval:
                named[event.approval] = None
        ids = [*named]
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            for loaded in await self._load_each(page):
                requester = loaded.approval.requester
                if requester and requester.user == user:
                    found.append(loaded.approval.id)
        return found
