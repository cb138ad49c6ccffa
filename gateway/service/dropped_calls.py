"""End the calls of a run that its thread does not ask about any more."""

from __future__ import annotations

import logging
from collections.abc import Collection

from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)


class DroppedCalls:
    """What waits in the runs of agents although nothing asks about it.

    Args:
        store: where the approvals are.
        agents: ends the calls.
    """

    def __init__(self, store: Store, agents: AgentService) -> None:
        self._store = store
        self._agents = agents

    async def end(
        self,
        keys: Keys,
        tenant: str,
        run: RunRef,
        asked: Collection[str],
        *,
        is_finished: bool,
    ) -> None:
        """Withdraw what nothing asks about: another middleware dropped the call.

        While the thread rests on a question, an authorized item may belong to a tool
        whose inside asks that question, so only pending ones end.
        """
        ends = {ItemState.PENDING}
        if is_finished:
            ends.add(ItemState.AUTHORIZED)
        dropped = frozenset(
            item.id
            for approval in await self.droppable(keys, tenant, run, asked)
            for item in approval.items
            if item.state in ends and item.id not in asked
        )
        if dropped:
            logger.warning(
                "items.dropped agent=%s thread=%s items=%s",
                run.agent,
                run.thread,
                ",".join(sorted(dropped)),
            )
            await self._agents.withdraw(dropped)

    async def droppable(
        self, keys: Keys, tenant: str, run: RunRef, asked: Collection[str]
    ) -> list[Approval]:
        """Return the run's unfinished approvals, but for those a paused task may need.

        A task that runs several agents at once shows the question of one; the others
        ask when it is entered again.
        """
        approvals = self._store.approvals
        ids = await approvals.unfinished_of_run(keys, tenant, run)
        found = [one.approval for one in await approvals.load_each(ids)]
        asking = {one.ns for one in found if any(i.id in asked for i in one.items)}
        paused = {_task(ns) for ns in asking if ns}
        return [one for one in found if one.ns in asking or _task(one.ns) not in paused]


def _task(ns: str) -> str:
    """Return the task of the run's outermost graph that a namespace lies in."""
    return ns.partition("|")[0]
