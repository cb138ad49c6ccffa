"""Wake workflows whose calls were decided, so that they need not ask all the time.

An Update is a knock: the workflow then asks the gateway itself, so whoever may send
Updates can approve nothing. A lost one delays a call until the workflow's next poll,
and a repeated one is refused by the workflow or dropped by its id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from typing import Any

from temporalio import client as temporal
from temporalio.service import RPCError, RPCStatusCode

from keyturn.connect.gate import Gate
from keyturn.connect.temporal.gated import DECISION
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.records import ItemState, RunRef

logger = logging.getLogger(__name__)

WAIT_S = 30
PAUSE_S = 5.0
"""Length of one long poll, and the pause after one that failed."""

MOST_AT_ONCE = 50
_UPDATE_WITHIN = timedelta(seconds=20)

_Knock = tuple[RunRef, str, ItemState, str]
"""The run and the id of a call, its state, and the place of the event."""

_THREAD = re.compile(r"(.+)/[0-9a-f]{8}-[0-9a-f-]{27}", re.DOTALL)
"""The id of a workflow and of its run; threads of other runtimes look different."""

_UNDECIDED = {ItemState.PENDING, ItemState.EXECUTING, ItemState.IN_DOUBT}
_ENDED = {ItemState.EXECUTED, ItemState.FAILED}


class Waker:
    """Sends an Update to each workflow about whose call something was decided.

    Several may run at once; each knock counts once.

    Args:
        client: of the namespace of the workflows.
        gate: the gateway, with a key that may read the calls of their agents.
    """

    def __init__(self, client: temporal.Client, gate: Gate) -> None:
        self._client = client
        self._gate = gate
        self._in_doubt = set[str]()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> None:
        """Follow the gateway's events until cancelled."""
        place = ""
        async with asyncio.TaskGroup() as knocks:
            while True:
                try:
                    place, found = await self._decided(place)
                except Exception as error:  # noqa: BLE001 - the waker must survive
                    # Workflows ask by themselves now and then. No event is lost.
                    log_failure(logger, error, "temporal.waker_waits")
                    await asyncio.sleep(PAUSE_S)
                    continue
                for knock in found:
                    knocks.create_task(self._knock(*knock))

    async def _decided(self, place: str) -> tuple[str, list[_Knock]]:
        """Return the place after the next events, and their decided calls."""
        page = await self._gate.events(after=place, wait_s=WAIT_S if place else 0)
        found = [
            (event.run, event.item, event.state, event.id)
            for event in page.events
            if event.state and self._wakes(event.item, event.state)
        ]
        cursor = "" if page.missed or not place else None
        while cursor is not None:
            # Events are gone: approved calls are listed, others are found by polls.
            listed = await self._gate.listing(state="authorized", cursor=cursor)
            found += [
                (one.run, call.id, call.state, page.next)
                for one in listed.approvals
                for call in one.calls
                if call.state is ItemState.AUTHORIZED
            ]
            cursor = listed.next or None
        return page.next, found

    def _wakes(self, item_id: str, state: ItemState) -> bool:
        """Return whether a workflow waits for this change of a call."""
        was_in_doubt = item_id in self._in_doubt
        change = set.add if state is ItemState.IN_DOUBT else set.discard
        change(self._in_doubt, item_id)
        # Other ends are reported by the activity itself.
        return state not in _UNDECIDED and (state not in _ENDED or was_in_doubt)

    async def _knock(
        self, run: RunRef, item_id: str, state: ItemState, place: str
    ) -> None:
        found = _THREAD.fullmatch(run.thread)
        if found is None:
            return
        # Without the run: the workflow may have continued as new.
        handle = self._client.get_workflow_handle(found[1])
        try:
            async with self._slots:
                await handle.execute_update(
                    DECISION,
                    item_id,
                    # Of the event, so that the knocks of several wakers count once.
                    id=f"{item_id}@{place}",
                    rpc_timeout=_UPDATE_WITHIN,
                )
        except temporal.WorkflowUpdateFailedError:
            logger.debug("temporal.not_needed item=%s", item_id)
        except Exception as error:  # noqa: BLE001 - the others have to be woken
            if getattr(error, "status", None) is not RPCStatusCode.NOT_FOUND:
                log_failure(logger, error, "temporal.not_woken item=%s", item_id)
            elif state is ItemState.AUTHORIZED:
                await self._withdraw_ended(handle, run, item_id)

    async def _withdraw_ended(
        self, handle: temporal.WorkflowHandle[Any, Any], run: RunRef, item_id: str
    ) -> None:
        """Withdraw an approved call that waits for a workflow that has ended."""
        try:
            described = await handle.describe(rpc_timeout=_UPDATE_WITHIN)
            if described.status is not temporal.WorkflowExecutionStatus.RUNNING:
                await self._gate.withdraw(run, (item_id,))
        except (RPCError, KeyturnError, OSError) as error:
            log_failure(logger, error, "temporal.not_withdrawn item=%s", item_id)
