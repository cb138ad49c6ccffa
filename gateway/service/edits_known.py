"""Compare edits that an agent's state names with our record of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.edits import edit_hash
from twokey.gateway.protocol.outcomes import EditsKnown
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.store.keys import shard_of_approval

Find = Callable[[str], Awaitable[tuple[Approval, Item] | None]]


async def edits_known(find: Find, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
    """Return which edits were made in a run, and of which nothing is known.

    An edit was made when our record has it: hash, item and run alike. Of an item that
    we have no record of, or no longer, we can say neither.

    Args:
        find: reads an item; None when it is not there or cannot be read.
        ref: whose agent asks.
        edits: hash of an edit record to the id of its item.
    """
    made, unknown = set[str](), set[str]()
    for each, item_id in edits.items():
        found = await find(item_id)
        if found is None:
            if shard_of_approval(item_id.rpartition(".")[0]) is not None:
                unknown.add(each)
        elif is_of_run(found[0], ref):
            record = found[1].edit
            if record is not None and edit_hash(record) == each:
                made.add(each)
    return EditsKnown(made=frozenset(made), unknown=frozenset(unknown))


def is_of_run(approval: Approval, ref: TurnRef) -> bool:
    """Say whether an approval belongs to the run that a turn is part of.

    One agent may be run by itself now, and then by what brings back the graph around
    it: then one of the two names no run outside.
    """
    is_one_agent = (approval.agent, approval.thread) == (ref.agent, ref.thread)
    is_outermost = approval.outer is None or ref.outer is None
    return approval.run_ref == ref.run_ref or (is_one_agent and is_outermost)
