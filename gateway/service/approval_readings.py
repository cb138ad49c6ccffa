"""Read approvals for agents in other processes, by their id or as a queue."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import end_of
from twokey.gateway.errors import BadJson, CorruptRecord, NewerRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol.approval_views import (
    ApprovalPage,
    ApprovalView,
    CallView,
    DecisionView,
)
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.due_pages import Due, due_page
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

MayBe = Callable[[str], bool]

_SCANNED = 500
"""How many approvals one page looks at, also those that are not for who asks."""


class ApprovalReadings(TenantService):
    """What agents of one tenant may read."""

    async def one(self, approval_id: str, may_be: MayBe) -> ApprovalView | None:
        """Return an approval; None where there is none that who asks may read.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        if self._store.keys_of_approval(approval_id) is None:
            return None
        try:
            loaded = await self._store.approvals.load(approval_id)
        except NewerRecord:
            return None
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            return None
        if loaded is None or not self._may_read(loaded.approval, may_be):
            return None
        return view_of(loaded.approval)

    async def page(
        self,
        may_be: MayBe,
        *,
        states: frozenset[ItemState],
        agent: str = "",
        cursor: str = "",
        limit: int,
    ) -> ApprovalPage:
        """Return approvals with a call in one of these states, the soonest due first.

        Args:
            may_be: says for which agents who asks speaks.
            states: pending, authorized or executing ones.
            agent: only this one's; "" for all.
            cursor: from the page before; "" for the first one.
            limit: how many at most.

        Raises:
            BadJson: the cursor is none of ours.
            StoreUnavailable: when the store does not answer.
        """
        parts = (self._keys_of(agent),) if agent else self._parts
        part, due = _read_cursor(cursor, parts)
        found: list[ApprovalView] = []
        scanned = 0
        while part < len(parts) and len(found) < limit and scanned < _SCANNED:
            keys = parts[part]
            page = await due_page(self._store.conn, keys, due, limit - len(found))
            ids = await self._store.members.approvals(
                keys, keys.expiry, [one.member for one in page]
            )
            loaded = await self._store.approvals.load_each(ids)
            for each in loaded:
                approval = each.approval
                is_wanted = not agent or agent in {
                    approval.agent,
                    approval.run_ref.agent,
                }
                if (
                    is_wanted
                    and self._may_read(approval, may_be)
                    and any(item.state in states for item in approval.items)
                ):
                    found.append(view_of(approval))
            scanned += len(page)
            part, due = (part, page[-1]) if page else (part + 1, None)
        is_last = part >= len(parts)
        return ApprovalPage(
            approvals=tuple(found), next="" if is_last else _cursor(parts[part], due)
        )

    def _may_read(self, approval: Approval, may_be: MayBe) -> bool:
        # A standing approval belongs to no agent.
        is_ours = approval.tenant == self._tenant and not approval.is_standing
        return is_ours and may_be(approval.agent) and may_be(approval.run_ref.agent)


def view_of(approval: Approval) -> ApprovalView:
    """Return an approval as it may be read by its agent's owners."""
    return ApprovalView(
        id=approval.id,
        agent=approval.agent,
        thread=approval.thread,
        run=approval.run_ref,
        channel=approval.channel,
        version=approval.version,
        is_waiting=approval.state is ApprovalState.OPEN,
        created_at=_time(approval.created_at_ms),
        requester=approval.requester,
        calls=tuple(_call(approval, item) for item in approval.items),
    )


def _call(approval: Approval, item: Item) -> CallView:
    decision = item.decision
    return CallView(
        id=item.id,
        index=item.index,
        tool=item.tool,
        tool_call_id=item.ctx.tool_call_id,
        args=redacted(item.args, item.redact),
        action_hash=item.action_hash,
        state=item.state,
        tier=item.tier,
        reasons=item.reasons,
        allow=item.allow,
        expires_at=_time(end_of(approval, item)),
        changed_at=_time(item.changed_at_ms or approval.created_at_ms),
        approvals=len(item.votes_now),
        is_edited=item.edit is not None,
        decision=None
        if decision is None
        else DecisionView(
            verb=decision.verb,
            by=decision.by,
            at=_time(decision.at_ms),
            text=decision.text,
        ),
        ok=item.result.ok if item.result else None,
    )


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _cursor(keys: Keys, due: Due | None) -> str:
    place = f"{keys.shard} {due.at} {due.member.hex()}" if due else f"{keys.shard}"
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _read_cursor(text: str, parts: tuple[Keys, ...]) -> tuple[int, Due | None]:
    if not text:
        return 0, None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        shard, *rest = raw.decode("ascii").split(" ")
        part = [keys.shard for keys in parts].index(shard)
        if not rest:
            return part, None
        at, member = rest
        return part, Due(str(float(at)), bytes.fromhex(member))
    except (binascii.Error, ValueError) as error:
        raise BadJson("the cursor is none that this gateway made") from error
