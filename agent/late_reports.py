"""Insert late execution reports into the tool results that the model reads.

A worker that seemed dead may finish after people reconciled its call and the agent read
their answer. Reports are not kept in state: before each model call the gateway is asked
about the results that are still among the messages, and each report is put once into
the model's input, inside the result that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from keyturn.agent import tool_messages, turns
from keyturn.agent.calls import Caller
from keyturn.agent.edit_verification import ask_gateway
from keyturn.agent.messages import ITEM_KEY, RECONCILED_KEY, prepend
from keyturn.gateway.protocol import edits
from keyturn.gateway.protocol.wire import LateReport

MARK = "[keyturn:late]"
"""Opens every late report; the same text in a tool's own output is defused."""

MAX_ASKED = 64
"""How many results one model call asks about at most, the newest."""


async def fetch_reports(
    caller: Caller, messages: Sequence[AnyMessage]
) -> dict[str, LateReport]:
    """Return the late reports about the results among these messages, by item id.

    Without a message whose call was in doubt the gateway is not asked.

    Raises:
        ThreadUnavailable: when the gateway cannot say.
    """
    asked = [
        _item_of(message)
        for message in messages
        # All of them are looked at before each model call.
        if message.additional_kwargs and _is_reconciled(message)
    ]
    # Newest first, so that the bound leaves out the oldest.
    ids = [*dict.fromkeys(each for each in reversed(asked) if each)][:MAX_ASKED]
    ref = turns.turn_ref(caller.agent, "") if ids else None
    if ref is None:
        return {}
    found = await ask_gateway(caller, lambda gateway: gateway.late_reports(ref, ids))
    return {report.item_id: report for report in found}


def with_reports(
    messages: Sequence[AnyMessage], reports: Mapping[str, LateReport]
) -> list[AnyMessage]:
    """Return the input of a model call in which every late report stands once."""
    if not reports:
        return [*messages]
    remaining = dict(reports)
    placed: list[AnyMessage] = []
    for message in messages:
        report = remaining.get(_item_of(message)) if _is_reconciled(message) else None
        if report is not None and _is_new(message, report):
            del remaining[report.item_id]
            text = edits.defuse(tool_messages.late_report_text(report))
            placed.append(prepend(message, [f"{MARK} {text}"]))
        else:
            placed.append(message)
    return placed


def _is_new(message: Any, report: LateReport) -> bool:  # noqa: ANN401 - a ToolMessage
    """Return whether a report differs from what the result of its call says."""
    # State can be rewritten: a report stands only in the result of its own call.
    if message.tool_call_id != report.tool_call_id:
        return False
    if report.is_apart:
        # An earlier attempt that failed adds nothing to what the result says.
        return report.ok
    return report.ok is (message.status == "error")


def _is_reconciled(message: AnyMessage) -> bool:
    is_result = isinstance(message, ToolMessage)
    return is_result and message.additional_kwargs.get(RECONCILED_KEY) is True


def _item_of(message: AnyMessage) -> str:
    found: object = message.additional_kwargs.get(ITEM_KEY)
    return found if isinstance(found, str) else ""
