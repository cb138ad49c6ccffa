"""Tell the audit log that somebody tried to decide who may not.

A refusal changes nothing, so it has no step to be written with: its entry is written
behind it, and where the store is away, the log of the process alone has it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

from twokey.gateway.approvals.decisions import (
    BatchRefused,
    Click,
    Forbidden,
    Reviewer,
)
from twokey.gateway.approvals.events import Event, EventName, approval_event
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import TwokeyError
from twokey.gateway.failures import log_failure
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

_MOST_KNOWN = 1000

T = TypeVar("T")


class RefusedDecisions:
    """Writes refusals of reviewers to the audit log.

    Args:
        store: where the log is.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[tuple[str, str, int, str], None] = {}

    async def noted(
        self,
        outcome: T,
        read: Sequence[Approval],
        click: Click,
        verb: str,
        reviewer: Reviewer,
    ) -> T:
        """Return the outcome of a decision; write an entry where it is a refusal.

        One for each person, version of the card and reason: clicking again adds none.

        Args:
            outcome: of the decision.
            read: the record that it is about, where it was read.
            click: what the person saw.
            verb: what they said.
            reviewer: who they are.
        """
        refusal = outcome.refusal if isinstance(outcome, BatchRefused) else outcome
        if isinstance(refusal, Forbidden) and read:
            event = _event(refusal, read[0], click, verb, reviewer)
            told = (event.actor, event.approval, click.version, event.reason)
            if told not in self._told:
                await self._write(event)
                if len(self._told) >= _MOST_KNOWN:
                    del self._told[next(iter(self._told))]
                self._told[told] = None
        return outcome

    async def _write(self, event: Event) -> None:
        keys = self._store.keys_of_approval(event.approval)
        if keys is None:
            return
        try:
            await self._store.audit(keys).append(event)
        except TwokeyError as error:
            log_failure(logger, error, "decision.refusal_unrecorded")


def _event(
    refusal: Forbidden, approval: Approval, click: Click, verb: str, reviewer: Reviewer
) -> Event:
    # A decision on all calls of a card names none of them.
    item = next((one for one in approval.items if one.index == click.index), None)
    person = reviewer.person
    return approval_event(approval, EventName.DECISION_REFUSED, item).with_(
        actor=f"{person.team}/{person.user}",
        reason=refusal.reason,
        request_digest=click.request_digest,
        data={"verb": verb, "gesture": reviewer.gesture.value},
    )
