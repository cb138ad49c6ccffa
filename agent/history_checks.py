"""Check the history that the model reads with the gateway: edits and late reports.

People's edits of earlier calls are known from three places: this agent's own state, the
results in its messages, and one bounded look back over the run when an agent begins.
Only the gateway's record decides.

A worker that seemed dead may finish after people reconciled its call and the agent read
their answer. Its late report is not kept in state: before each model call the gateway
is asked about the results that are still among the messages, and each report is put
once into the model's input, inside the result that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AnyMessage, ToolMessage

from keyturn.agent import messages, nesting, tool_messages, turns
from keyturn.agent.bridge import ask_with_retries
from keyturn.agent.calls import Caller
from keyturn.agent.messages import ITEM_KEY, RECONCILED_KEY, prepend
from keyturn.gateway.errors import (
    BadJson,
    KeyRefused,
    KeyturnError,
    NotAllowed,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import edits
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import EditRecord
from keyturn.gateway.protocol.wire import LateReport

T = TypeVar("T")

MARK = "[keyturn:late]"
"""Opens every late report; the same text in a tool's own output is defused."""

MAX_ASKED = 64
"""How many results one model call asks about at most, the newest."""


@dataclass(frozen=True)
class ThreadEdits:
    """Edits that a state names, oldest first; ``unknown`` have no record."""

    made: tuple[EditRecord, ...] = ()
    unknown: tuple[EditRecord, ...] = ()


async def confirm_edits(caller: Caller, state: Mapping[str, Any]) -> ThreadEdits:
    """Return the edits in an agent's state that the gateway confirms or cannot deny.

    State knows them from this agent's own record and from the results in its messages,
    which may be of other agents of the run. It is not believed: the gateway is asked
    about each of them. An edit counts in the run it was made in: a copy of it in the
    state of another thread, or of another agent whose thread has the same name, is left
    out, and so is one that nobody made. One of which the gateway has no record is kept
    apart: records end, and a store may lose them.

    Raises:
        ThreadUnavailable: when the gateway cannot say. The model must neither miss
            what a person changed nor be told of a change that nobody made.
    """
    named: dict[str, EditRecord] = {}
    for record in _named_edits(state):
        # What cannot be hashed is no record of ours, so nobody made that edit.
        with suppress(BadJson):
            named[edits.edit_hash(record)] = record
    ref = turns.turn_ref(caller.agent, "") if named else None
    if ref is None:
        return ThreadEdits()
    asked = {each: f"{one.item_id} {one.seal}" for each, one in named.items()}
    known = await ask_gateway(caller, lambda gateway: gateway.edits_known(ref, asked))
    made = [
        record.with_(outcome=known.made[each])
        for each, record in named.items()
        if each in known.made
    ]
    return ThreadEdits(
        made=tuple(made),
        unknown=tuple(one for each, one in named.items() if each in known.unknown),
    )


async def missed_edits(caller: Caller, state: Mapping[str, Any]) -> list[EditRecord]:
    """Return edits of the run that this agent's own state does not know of.

    Another agent of the run may have made the call, in an earlier node or an
    earlier visit, and its result need not stand in the messages of this one.

    Raises:
        ThreadUnavailable: when the gateway cannot say; see `confirm_edits`.
    """
    ref = turns.turn_ref(caller.agent, "")
    if ref is None:
        return []
    try:
        caller.gateway()
    except NotAllowed:
        return []
    # An agent inside a tool reads the edits of its own conversation, the outermost one
    # those of the whole run.
    run_ref, within = ref.run_ref, nesting.conversation_of(ref.ns)
    found = await ask_gateway(caller, lambda gateway: gateway.history(run_ref, within))
    known = _named_edits(state)
    return [record for record in found if record not in known]


async def report_edits(caller: Caller, request: ToolCallRequest) -> None:
    """Report to an outer agent the edits that a call of this one comes after.

    Raises:
        ThreadUnavailable: when the gateway cannot say; see `confirm_edits`.
    """
    state = cast("Mapping[str, Any]", request.state)
    nesting.report_edits((await confirm_edits(caller, state)).made)
    message = turns.requesting_message(state, request.tool_call["id"] or "")
    has_siblings = message is not None and len(message.tool_calls) > 1
    if has_siblings and request.tool is not None and request.tool.return_direct:
        # Siblings that ran before a pause stand in no state yet, and where all calls
        # return directly, no model call follows that would see them there.
        nesting.report_edits(await missed_edits(caller, state))


async def ask_gateway(
    caller: Caller, question: Callable[[Gateway], Coroutine[Any, Any, T]]
) -> T:
    """Ask the gateway a question before a model call, with retries.

    Raises:
        ThreadUnavailable: when it cannot say.
        KeyRefused: when it refuses the API key of this process.
    """
    try:
        gateway = caller.gateway()
        return await ask_with_retries(caller.shell, lambda: question(gateway))
    except KeyRefused:
        raise
    except KeyturnError as error:
        raise ThreadUnavailable(
            f"{error} The model was not asked, as the gateway did not confirm what "
            "happened in this thread; resume the thread once it does."
        ) from error


def _named_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    return [*messages.known_edits(state), *messages.carried_edits(state)]


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
