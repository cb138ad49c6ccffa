"""Wake workflows whose calls were decided, so that they rarely poll the gateway.

An Update only makes the workflow ask the gateway, so a forged Update approves nothing.
A lost Update delays a call until the workflow's next poll. A repeated Update is refused
by the workflow, or dropped because of its id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from typing import Any

from temporalio import client as temporal
from temporalio.service import RPCError, RPCStatusCode

from keyturn.connect.gate import Following, Gate, Listing, each_listed
from keyturn.connect.temporal.gated import DECISION
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import Outage, log_failure
from keyturn.gateway.protocol.records import ItemState, RunRef

logger = logging.getLogger(__name__)

WAIT_S = 30
PAUSE_S = 5.0
"""Length of one long poll, and the pause after a failed one, in seconds."""

MOST_AT_ONCE = 50
_UPDATE_WITHIN = timedelta(seconds=20)

_Knock = tuple[RunRef, str, ItemState, str]
"""A call's run and id, its state, and the id of the event."""

_THREAD = re.compile(r"(.+)/[0-9a-f]{8}-[0-9a-f-]{27}", re.DOTALL)
"""The ids of a workflow and its run; threads of other runtimes do not match."""

_UNDECIDED = {ItemState.PENDING, ItemState.EXECUTING, ItemState.IN_DOUBT}
_ENDED = {ItemState.EXECUTED, ItemState.FAILED}


class Waker:
    """Sends an Update to each workflow with a newly decided call.

    Several wakers may run concurrently: their Updates for an event have one id.

    Args:
        client: client for the namespace of the workflows.
        gate: the gateway; its key must read the calls of the workflows' agents.
    """

    def __init__(self, client: temporal.Client, gate: Gate) -> None:
        self._client = client
        self._gate = gate
        self._in_doubt = set[str]()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> None:
        """Follow the gateway's events until cancelled."""
        place, outage = "", Outage(logger, "the gateway")
        async with asyncio.TaskGroup() as knocks:
            while True:
                try:
                    place, found = await self._decided(place)
                    outage.ends()
                except Exception as error:  # noqa: BLE001 - the waker must survive
                    # No event is lost: the next request continues at this place.
                    if isinstance(error, KeyturnError):
                        outage.goes_on(error)
                    else:
                        log_failure(logger, error, "temporal.waker_waits")
                    await asyncio.sleep(PAUSE_S)
                    continue
                for knock in found:
                    knocks.create_task(self._knock(*knock))

    async def _decided(self, place: str) -> tuple[str, list[_Knock]]:
        """Return the position after the next events, and the decided calls in them."""
        asked = Following(after=place, wait_s=WAIT_S if place else 0)
        page = await self._gate.events(asked)
        found = [
            (event.run, event.item, event.state, event.id)
            for event in page.events
            if event.state and self._wakes(event.item, event.state)
        ]
        if page.missed or not place:
            # Events were missed: list the approved calls; polls find the others.
            found += [
                (one.run, call.id, call.state, page.next)
                async for one in each_listed(self._gate, Listing(state="authorized"))
                for call in one.calls
                if call.state is ItemState.AUTHORIZED
            ]
        return page.next, found

    def _wakes(self, item_id: str, state: ItemState) -> bool:
        """Return True if a workflow waits for this change of a call."""
        was_in_doubt = item_id in self._in_doubt
        if state is ItemState.IN_DOUBT:
            self._in_doubt.add(item_id)
        else:
            self._in_doubt.discard(item_id)
        # The activity itself reports all other ends.
        return state not in _UNDECIDED and (state not in _ENDED or was_in_doubt)

    async def _knock(
        self, run: RunRef, item_id: str, state: ItemState, place: str
    ) -> None:
        found = _THREAD.fullmatch(run.thread)
        if found is None:
            return
        # No run id: the workflow may have continued as new.
        handle: Any = self._client.get_workflow_handle(found[1])
        try:
            async with self._slots:
                await handle.execute_update(
                    DECISION,
                    item_id,
                    # The event's id, so that Updates of several wakers count once.
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
        """Withdraw an approved call whose workflow has ended."""
        try:
            described = await handle.describe(rpc_timeout=_UPDATE_WITHIN)
            if described.status is not temporal.WorkflowExecutionStatus.RUNNING:
                await self._gate.withdraw(run, (item_id,))
        except (RPCError, KeyturnError, OSError) as error:
            log_failure(logger, error, "temporal.not_withdrawn item=%s", item_id)
