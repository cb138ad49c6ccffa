"""Outcomes of calls, for agents that read them later."""

from __future__ import annotations

from twokey.gateway.protocol.records import EditRecord, Record, Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Answer, ReconcileAnswer


class CallOutcome(Record):
    """What became of one held call, for repairing a turn that was cut off.

    ``found`` and ``settled`` are as in `Done`.
    """

    item_id: str
    tool_call_id: str
    tool: str
    state: ItemState
    answer: Answer | None = None
    edit: EditRecord | None = None
    result: Result | None = None
    found: ReconcileAnswer | None = None
    settled: ReconcileAnswer | None = None


class LateReport(Record):
    """What an executor reported after people had settled the doubt about its call.

    ``is_apart`` says that it is about an earlier attempt than the call's own result.
    """

    item_id: str
    tool_call_id: str
    ok: bool
    summary: str = ""
    is_apart: bool = False


class EditsKnown(Record):
    """What our record says of edits that an agent's state names, by their hashes.

    Those that are neither ``made`` nor ``unknown`` were not made. Of the unknown ones
    there is no record, or no longer: nobody can say whether people made them.
    """

    made: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
