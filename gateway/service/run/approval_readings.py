"""Read approvals for agents in other processes, by their id or as a queue."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.evidence import differences, original_text, redacted
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import micro_text
from keyturn.gateway.approvals.timing import end_of
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import approval_views as views
from keyturn.gateway.protocol.digest import state_in
from keyturn.gateway.protocol.records import EditRecord, Effect, ItemState
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.submit.call_evaluation import as_of_now
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.connection.listed_members import Due, due_page, readable

logger = logging.getLogger(__name__)

MayBe = Callable[[str], bool]

_LOOK = 100
"""Most approvals that are read at once."""

_SCANNED = 500
"""Most approvals that one page scans, including those hidden from the caller."""


class ApprovalReadings(PolicyService):
    """The approvals of one tenant, as its agents may read them."""

    async def one(self, approval_id: str, may_be: MayBe) -> views.ApprovalView | None:
        """Return an approval; None if it does not exist or is hidden from the caller.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        for loaded in await self._load_each([approval_id]):
            if _may_read(loaded.approval, may_be):
                now = await as_of_now(self._store, self.policy_now, loaded.approval)
                return await aside(partial(view_of, now, may_be), _documents(now))
        return None

    async def page(
        self,
        may_be: MayBe,
        *,
        states: frozenset[ItemState],
        agent: str = "",
        cursor: str = "",
        limit: int,
    ) -> views.ApprovalPage:
        """Return approvals with a call in one of these states, the soonest due first.

        Args:
            may_be: returns whether the caller may act for an agent.
            states: pending, authorized, executing, handing over, or not taken if the
                agent should ask again.
            agent: only approvals of this agent; "" for all.
            cursor: from the page before; "" for the first page.
            limit: most approvals on the page.

        Raises:
            BadJson: when the cursor is not from this gateway.
            StoreUnavailable: when the store does not answer.
        """
        keys, due = self._keys, _read_cursor(cursor)
        found: list[views.ApprovalView] = []
        scanned, is_last = 0, False
        while not is_last and len(found) < limit and scanned < _SCANNED:
            size = min(limit - len(found), _LOOK)
            page = await due_page(self._store.conn, keys.expiry, due, size)
            ids = readable([one.member for one in page], keys.unlisted)
            for each in await self._load_each(ids):
                approval = each.approval
                is_wanted = not agent or agent in {
                    approval.agent,
                    approval.run_ref.agent,
                }
                if (
                    is_wanted
                    and _may_read(approval, may_be)
                    and any(_is_listed(item, states) for item in approval.items)
                ):
                    view = partial(view_of, approval)
                    found.append(await aside(view, _documents(approval)))
            scanned += len(page)
            due, is_last = (page[-1], False) if page else (None, True)
        return views.ApprovalPage(
            approvals=tuple(found), next="" if due is None else _cursor(due)
        )


def _is_listed(item: Item, states: frozenset[ItemState]) -> bool:
    is_over = item.state is ItemState.NOT_TAKEN and not item.is_to_be_asked_again
    return item.state in states and not is_over


def _may_read(approval: Approval, may_be: MayBe) -> bool:
    # A standing approval belongs to no agent.
    is_of_agent = not approval.is_standing
    return is_of_agent and may_be(approval.agent) and may_be(approval.run_ref.agent)


def _documents(approval: Approval) -> list[str]:
    return [item.action for item in approval.items]


def view_of(approval: Approval, may_be: MayBe = lambda _: False) -> views.ApprovalView:
    """Return an approval as it may be read by its agent's owners.

    Args:
        approval: the record; precedents and windows are shown as recorded.
        may_be: returns whether the caller may act for an agent; precedents of other
            agents are shortened.
    """
    return views.ApprovalView(
        id=approval.id,
        agent=approval.agent,
        thread=approval.thread,
        ns=approval.ns,
        message_id=approval.message_id,
        run=approval.run_ref,
        channel=approval.channel,
        version=approval.version,
        is_waiting=approval.state is ApprovalState.OPEN,
        created_at=_time(approval.created_at_ms),
        requester=approval.requester,
        principals=approval.principals,
        policy_digest=approval.policy_digest,
        digest=approval.digest,
        agent_says=approval.says,
        agent_task=approval.task,
        calls=tuple(_call(approval, item, may_be) for item in approval.items),
    )


def _call(approval: Approval, item: Item, may_be: MayBe) -> views.CallView:
    decision, required = item.decision, item.requirement
    original = item.original_args
    return views.CallView(
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
        agent_description=item.agent_description,
        evidence=item.evidence,
        agent_wrote=original_text(original, item.requested_args, item.redact)
        if original is not None
        else "",
        description=item.description,
        link=item.link,
        effect=item.effect_class or Effect.IRREVERSIBLE,
        idempotent=item.idempotent,
        requires_reason=item.requires_reason,
        roles=tuple(
            views.RoleView(name=one.name, users=one.users, usergroups=one.usergroups)
            for one in required.roles
        ),
        needs=_clauses(quorum.clauses(required)),
        missing=missing_of(item),
        votes=tuple(
            views.VoteView(
                by=vote.by,
                roles=vote.roles,
                at=_time(vote.at_ms),
                reason=vote.reason,
                on_behalf_of=vote.on_behalf_of,
            )
            for vote in item.votes_now
        ),
        editor_may_vote=required.editor_may_vote,
        is_frozen=item.is_frozen,
        revoked=item.revoked.reason if item.revoked else "",
        state_asked=state_in(item.requested),
        state_now=state_in(item.action),
        triage=item.triage.rationale if item.triage else "",
        same_by=item.past.same_by,
        precedents=tuple(_precedent(one, may_be) for one in item.past.precedents),
        windows=tuple(
            views.WindowView(
                window=one.window,
                by=one.by,
                total=micro_text(one.others_micro),
                within_s=one.within_ms // 1000,
            )
            for one in item.past.totals
        ),
        edit=None if item.edit is None else _edit(item, item.edit),
        approvals=len(item.votes_now),
        is_edited=item.edit is not None,
        decision=None
        if decision is None
        else views.DecisionView(
            verb=decision.verb,
            by=decision.by,
            at=_time(decision.at_ms),
            text=decision.text,
        ),
        ok=item.result.ok if item.result else None,
        handed_to=item.handed_to,
        handed=_handed(item),
        ask_again=item.is_to_be_asked_again,
    )


def _handed(item: Item) -> views.HandedView | None:
    if item.state not in {ItemState.HANDED_OVER, ItemState.NOT_TAKEN}:
        return None
    handed, reported = item.handed, item.handed.reported
    return views.HandedView(
        taken=item.state is ItemState.HANDED_OVER,
        problem=handed.problem,
        detail=handed.detail,
        reported_ok=reported.ok if reported else None,
        report=reported.summary if reported else "",
    )


def missing_of(item: Item) -> tuple[views.ClauseView, ...]:
    """Return the votes that a waiting call still lacks."""
    missing = quorum.missing_votes(item.requirement, item.votes, item.action_hash)
    return _clauses(missing) if item.is_pending else ()


def _clauses(clauses: Mapping[frozenset[str], int]) -> tuple[views.ClauseView, ...]:
    return tuple(
        views.ClauseView(votes=votes, of=tuple(sorted(names)))
        for names, votes in clauses.items()
    )


def _edit(item: Item, edit: EditRecord) -> views.EditView:
    return views.EditView(
        by=edit.by,
        at=_time(edit.at_ms),
        reason=edit.reason,
        changes=tuple(
            views.ChangeView(
                name=name,
                before=before.value if before else None,
                after=after.value if after else None,
            )
            for name, before, after in differences(
                item.requested_args, item.args, item.redact
            )
        ),
    )


def _precedent(one: Precedent, may_be: MayBe) -> views.PrecedentView:
    view = views.PrecedentView(state=one.state, at=_time(one.at_ms))
    if not may_be(one.agent):
        return view
    return view.with_(agent=one.agent, by=one.by, reason=one.reason)


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _cursor(due: Due) -> str:
    place = f"{due.at} {due.member.hex()}"
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _read_cursor(text: str) -> Due | None:
    if not text:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        at, member = raw.decode("ascii").split(" ")
        return Due(str(float(at)), bytes.fromhex(member))
    except (binascii.Error, ValueError) as error:
        raise BadJson("the cursor is none that this gateway made") from error
