"""Check the history that the model reads with the gateway: edits and late reports.

Edits of earlier calls have three sources: this agent's state, the results in its
messages, and one bounded query over the run when an agent begins. Only the gateway's
record decides.

A worker that seemed dead may finish after people reconciled its call and the agent read
their answer. Its late report is not stored in the state. Before each model call the
gateway is asked about the results that are still among the messages. Each report is
added once to the model's input, inside the result that it concerns.
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
"""The prefix of every late report; the same text in a tool's output is neutralized."""

MAX_ASKED = 64
"""The most results that one model call asks about, newest first."""


@dataclass(frozen=True)
class ThreadEdits:
    """Edits in a state, oldest first; ``unknown`` edits have no gateway record."""

    made: tuple[EditRecord, ...] = ()
    unknown: tuple[EditRecord, ...] = ()


async def confirm_edits(caller: Caller, state: Mapping[str, Any]) -> ThreadEdits:
    """Return the edits in an agent's state that the gateway confirms or cannot deny.

    The state contains edits from this agent's record and from the results in its
    messages, which may belong to other agents of the run. The state is not trusted: the
    gateway is asked about each edit. An edit counts in the run in which it was made.
    Forged edits are dropped, and so are copies in the state of another thread or of
    another agent whose thread has the same name. Edits without a record at the gateway
    are returned separately: records expire, and a store may lose them.

    Raises:
        ThreadUnavailable: when the gateway does not answer. The model must neither miss
            an edit nor read of one that was never made.
    """
    named: dict[str, EditRecord] = {}
    for record in _named_edits(state):
        # Every real record can be hashed, so this one is forged.
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
    """Return edits of the run that are missing from this agent's state.

    Another agent of the run may have made the call, in an earlier node or visit, and
    its result need not be among the messages of this agent.

    Raises:
        ThreadUnavailable: when the gateway does not answer; see `confirm_edits`.
    """
    ref = turns.turn_ref(caller.agent, "")
    if ref is None:
        return []
    try:
        caller.gateway()
    except NotAllowed:
        return []
    # An agent inside a tool reads the edits of its conversation, the outermost agent
    # those of the whole run.
    run_ref, within = ref.run_ref, nesting.conversation_of(ref.ns)
    found = await ask_gateway(caller, lambda gateway: gateway.history(run_ref, within))
    known = _named_edits(state)
    return [record for record in found if record not in known]


async def report_edits(caller: Caller, request: ToolCallRequest) -> None:
    """Report to an outer agent the edits that precede this call.

    Raises:
        ThreadUnavailable: when the gateway does not answer; see `confirm_edits`.
    """
    state = cast("Mapping[str, Any]", request.state)
    nesting.report_edits((await confirm_edits(caller, state)).made)
    message = turns.requesting_message(state, request.tool_call["id"] or "")
    has_siblings = message is not None and len(message.tool_calls) > 1
    if has_siblings and request.tool is not None and request.tool.return_direct:
        # Siblings that ran before a pause are in no state yet. If all calls return
        # directly, no later model call would see them there.
        nesting.report_edits(await missed_edits(caller, state))


async def ask_gateway(
    caller: Caller, question: Callable[[Gateway], Coroutine[Any, Any, T]]
) -> T:
    """Ask the gateway a question before a model call, with retries.

    Raises:
        ThreadUnavailable: when it does not answer.
        KeyRefused: when it refuses the API key of this process.
    """
    try:
        gateway = caller.gateway()
        return await ask_with_retries(caller.shell, lambda: question(gateway))
    except KeyRefused:
        raise
    except KeyturnError as error:
        raise ThreadUnavailable(
            f"{error} The model was not called, because the gateway did not confirm "
            "this thread's history; resume the thread when it is back."
        ) from error


def _named_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    return [*messages.known_edits(state), *messages.carried_edits(state)]


async def fetch_reports(
    caller: Caller, messages: Sequence[AnyMessage]
) -> dict[str, LateReport]:
    """Return the late reports about the results among these messages, by item id.

    Without a message whose call was in doubt, no request is sent.

    Raises:
        ThreadUnavailable: when the gateway does not answer.
    """
    asked = [
        _item_of(message)
        for message in messages
        # A cheap test first: all messages are scanned before each model call.
        if message.additional_kwargs and _is_reconciled(message)
    ]
    # Newest first, so that the limit drops the oldest.
    ids = [*dict.fromkeys(each for each in reversed(asked) if each)][:MAX_ASKED]
    ref = turns.turn_ref(caller.agent, "") if ids else None
    if ref is None:
        return {}
    found = await ask_gateway(caller, lambda gateway: gateway.late_reports(ref, ids))
    return {report.item_id: report for report in found}


def with_reports(
    messages: Sequence[AnyMessage], reports: Mapping[str, LateReport]
) -> list[AnyMessage]:
    """Return the input of a model call with every late report added once."""
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
    """Return True if a report differs from the result of its call."""
    # State can be rewritten: a report belongs only in the result of its call.
    if message.tool_call_id != report.tool_call_id:
        return False
    if report.is_apart:
        # An earlier attempt that failed adds no information to the result.
        return report.ok
    return report.ok is (message.status == "error")


def _is_reconciled(message: AnyMessage) -> bool:
    is_result = isinstance(message, ToolMessage)
    return is_result and message.additional_kwargs.get(RECONCILED_KEY) is True


def _item_of(message: AnyMessage) -> str:
    found: object = message.additional_kwargs.get(ITEM_KEY)
    return found if isinstance(found, str) else ""
