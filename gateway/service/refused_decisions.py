"""Tell the audit log that somebody tried to decide who may not.

A refusal changes nothing, so it has no step to be written with: its entry is written
behind it, and where the store is away, the log of the process alone has it.
"""

from __future__ import annotations

import logging

from keyturn.gateway.approvals.decisions import Click, Forbidden, Reviewer
from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

_MOST_KNOWN = 1000


class RefusedDecisions:
    """Writes refusals of reviewers to the audit log.

    Args:
        store: where the log is.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[tuple[str, str, int, str], None] = {}

    async def note(
        self,
        refusal: object,
        approval: Approval,
        click: Click,
        verb: str,
        reviewer: Reviewer,
    ) -> None:
        """Write an entry where somebody may not decide a call.

        One for each person, version of the card and reason: clicking again adds none.

        Args:
            refusal: the outcome of the decision.
            approval: the record that it is about.
            click: what the person saw.
            verb: of the decision.
            reviewer: who they are.
        """
        if not isinstance(refusal, Forbidden):
            return
        event = _event(refusal, approval, click, verb, reviewer)
        told = (event.actor, event.approval, click.version, event.reason)
        if told not in self._told:
            await self._write(event)
            if len(self._told) >= _MOST_KNOWN:
                del self._told[next(iter(self._told))]
            self._told[told] = None

    async def _write(self, event: Event) -> None:
        keys = self._store.keys_of_approval(event.approval)
        if keys is None:
            return
        try:
            await self._store.audit(keys).append(event)
        except KeyturnError as error:
            log_failure(logger, error, "decision.refusal_unrecorded")


def _event(
    refusal: Forbidden, approval: Approval, click: Click, verb: str, reviewer: Reviewer
) -> Event:
    item = next((one for one in approval.items if one.index == click.index), None)
    person = reviewer.person
    return approval_event(approval, EventName.DECISION_REFUSED, item).with_(
        actor=f"{person.team}/{person.user}",
        reason=refusal.reason,
        request_digest=click.request_digest,
        data={"verb": verb, "gesture": reviewer.gesture.value},
    )
