"""Correct the message history that the model reads, by the gateway's records.

The history is repaired after new user input interrupted a turn. LangGraph then drops
the results of calls that had already run, and leaves calls without results: the model
does not see its finished calls, and providers refuse the history. The gateway provides
the outcome of recorded calls; the rest is reported as unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from keyturn.agent import messages, result_codec, turns
from keyturn.agent.calls import Caller
from keyturn.agent.messages import ITEM_KEY, RECONCILED_KEY, prepend
from keyturn.agent.result_codec import restore_result
from keyturn.gateway import errors
from keyturn.gateway.client.bridge import ask_with_retries
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol import edits, run_context, texts, wire
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import EditRecord, ItemState

logger = logging.getLogger(__name__)

_EDITS = "keyturn_edits"
_OPEN = {ItemState.EXECUTING, ItemState.IN_DOUBT}
_RAN = {ItemState.EXECUTED, ItemState.FAILED}


@dataclass(slots=True)
class _Repair:
    """Additions of the repair: tool messages by id, edit records, state updates."""

    history: Sequence[AnyMessage]
    answers: dict[str, ToolMessage] = field(default_factory=dict[str, ToolMessage])
    records: list[EditRecord] = field(default_factory=list[EditRecord])
    updates: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


async def repair_history(
    caller: Caller, state: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the state updates that answer all open calls."""
    history = cast("list[AnyMessage]", list(state.get("messages", ())))
    note = turns.kept_turn(state)
    repair = _Repair(history)
    rebuilt: list[AnyMessage] = []
    is_broken = False
    for index, message in enumerate(history):
        if isinstance(message, ToolMessage) and message.tool_call_id in repair.answers:
            # Another middleware's guess (deepagents adds such messages) is replaced by
            # the gateway's record.
            continue
        rebuilt.append(message)
        if not isinstance(message, AIMessage):
            continue
        following = history[index + 1 :]
        verdicts = note.verdicts if note and note.message_id == message.id else {}
        lost = _lost_calls(message, following, verdicts)
        # Per message: some providers repeat call ids from message to message.
        repair.answers = {}
        # Providers refuse a history with an unanswered call (OpenAI and Anthropic: HTTP
        # 400).
        if lost:
            is_broken = True
            is_last = not any(isinstance(later, AIMessage) for later in following)
            await _answer(caller, repair, message, lost, verdicts if is_last else {})
            rebuilt.extend(repair.answers[call["id"] or ""] for call in lost)
    return _updates(state, rebuilt, repair) if is_broken else []


async def end_dropped_calls(caller: Caller, state: Mapping[str, Any]) -> None:
    """End waiting calls that the graph has skipped, before its model runs.

    Another middleware can answer a call, and so can a program, with ``update_state``.
    If Keyturn runs the thread, its cards end with the run. If a program runs the graph
    itself, only this function ends them.
    """
    note = turns.kept_turn(state)
    if note is None or run_context.current_run() is not None:
        return
    history = cast("list[AnyMessage]", list(state.get("messages", ())))
    for index, message in enumerate(history):
        if isinstance(message, AIMessage) and message.id == note.message_id:
            lost = _lost_calls(message, history[index + 1 :], note.verdicts)
            held = [note.verdicts.get(call["id"] or "") for call in lost]
            if any(one and one.kind is wire.VerdictKind.HOLD for one in held):
                await _outcomes(caller, message)


def merge_update(
    repairs: list[dict[str, Any]], more: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a repair with further state updates; None when there are none."""
    updates = [*repairs, more] if more else repairs
    if len(updates) <= 1:
        return updates[0] if updates else None
    # Separate commands, so that each update passes through the reducers. LangGraph
    # accepts a list of updates; LangChain's annotation lacks it.
    commands: list[Command[Any]] = [Command(update=one) for one in updates]
    return cast("dict[str, Any]", commands)


def _lost_calls(
    message: AIMessage,
    following: Sequence[AnyMessage],
    verdicts: Mapping[str, wire.Verdict],
) -> list[ToolCall]:
    """Return the calls without an answer, or with an answer from other middleware."""
    given: dict[str, ToolMessage] = {}
    for later in following:
        if isinstance(later, AIMessage):
            break
        if isinstance(later, ToolMessage):
            given[later.tool_call_id] = later
    lost: list[ToolCall] = []
    for call in message.tool_calls:
        answer = given.get(call["id"] or "")
        verdict = verdicts.get(call["id"] or "")
        is_recorded = verdict is not None and bool(verdict.item_id)
        if answer is None or (is_recorded and ITEM_KEY not in answer.additional_kwargs):
            lost.append(call)
    return lost


async def _answer(
    caller: Caller,
    repair: _Repair,
    message: AIMessage,
    lost: Sequence[ToolCall],
    verdicts: Mapping[str, wire.Verdict],
) -> None:
    outcomes = await _outcomes(caller, message)
    for call in lost:
        call_id = call["id"] or ""
        outcome = outcomes.get(call_id)
        if outcome is None or outcome.tool != call["name"]:
            text = _without_outcome(verdicts.get(call_id))
            repair.answers[call_id] = messages.message_for(call, text)
        else:
            repair.answers[call_id] = _from_outcome(repair, call, outcome)


async def _outcomes(caller: Caller, message: AIMessage) -> dict[str, wire.CallOutcome]:
    """End the waiting calls of a turn; return the known outcomes by call id."""
    ref = None if message.id is None else turns.turn_ref(caller.agent, message.id)
    if ref is None:
        return {}
    try:
        gateway = caller.gateway()
        # Ended first, then read: a decision in between would authorize a call that the
        # model reads as not run.
        await ask_with_retries(caller.shell, partial(gateway.supersede, ref))
        found = await ask_with_retries(caller.shell, partial(gateway.outcomes, ref))
    # Not raised: without a repair no provider accepts the history, and the conversation
    # would end. The messages then report an unknown outcome.
    except errors.KeyturnError as error:
        log_failure(logger, error, "repair.outcomes_unknown message=%s", message.id)
        return {}
    return {outcome.tool_call_id: outcome for outcome in found}


def _without_outcome(verdict: wire.Verdict | None) -> str:
    """Return the message for a call without a record at the gateway.

    The call may have run anyway: at tier ``auto``, or as a call of an ungated agent
    whose messages this agent reads. Only a refusal in this agent's verdicts proves that
    it did not run.
    """
    if verdict is not None and verdict.kind is wire.VerdictKind.DENY:
        return texts.denial_text(verdict.reason)
    return texts.INTERRUPTED


def _from_outcome(
    repair: _Repair, call: ToolCall, outcome: wire.CallOutcome
) -> ToolMessage:
    if outcome.reconcile_answer is not None:
        return messages.finding_message(
            call, outcome.reconcile_answer, item_id=outcome.item_id
        )
    if outcome.state in _RAN and outcome.result is not None:
        return _from_result(repair, call, outcome)
    answer = outcome.answer
    if answer is None or answer.type in {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}:
        text = texts.cut_off_text(outcome.state)
        answered = messages.message_for(call, text, item_id=outcome.item_id)
        # Marked: people may reconcile it later, and a late report may contradict them.
        return (
            messages.mark_reconciled(answered) if outcome.state in _OPEN else answered
        )
    return messages.decision_message(call, answer, item_id=outcome.item_id)


def _from_result(
    repair: _Repair, call: ToolCall, outcome: wire.CallOutcome
) -> ToolMessage:
    assert outcome.result is not None  # noqa: S101 - the caller looked
    result, inside = restore_result(call, outcome.result, repair.history)
    found = result_codec.last_tool_message(result)
    message = found or messages.message_for(call, texts.RESULT_LOST, is_error=False)
    named = message.model_copy(update={"tool_call_id": call["id"] or ""})
    marked = messages.marked(named, ITEM_KEY, outcome.item_id)
    repair.updates.extend(result_codec.other_updates(result))
    own = outcome.edit and edits.edit_as_spelled(outcome.edit, call["args"])
    repair.records.extend([own, *inside] if own else inside)
    message = messages.with_records(marked, own, inside)
    if outcome.reconciled is None:
        return message
    note = texts.reconciliation_note(outcome.reconciled)
    message = messages.mark_reconciled(message)
    return messages.with_note(message, note) if note else message


def _updates(
    state: Mapping[str, Any], rebuilt: list[AnyMessage], repair: _Repair
) -> list[dict[str, Any]]:
    known = messages.known_edits(state)
    update: dict[str, Any] = {
        # All messages are replaced: results must follow their call, and the reducer can
        # only append.
        "messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *rebuilt]
    }
    fresh = [record for record in repair.records if record not in known]
    if fresh:
        update[_EDITS] = messages.dump_records(fresh)
    return [update, *repair.updates]


# Check edits and late reports with the gateway.
#
# Edits of earlier calls have three sources: this agent's state, the results in its
# messages, and one bounded query over the run when an agent begins. Only the gateway's
# record decides.
#
# A worker that seemed dead may finish after people reconciled its call and the agent
# read their answer. Its late report is not stored in the state. Before each model call
# the gateway is asked about the results that are still among the messages. Each report
# is added once to the model's input, inside the result that it concerns.

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
        with suppress(errors.BadJson):
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
    except errors.NotAllowed:
        return []
    # An agent inside a tool reads the edits of its conversation, the outermost agent
    # those of the whole run.
    run_ref, within = ref.run_ref, turns.conversation_of(ref.ns)
    found = await ask_gateway(caller, lambda gateway: gateway.history(run_ref, within))
    known = _named_edits(state)
    return [record for record in found if record not in known]


async def report_edits(caller: Caller, request: ToolCallRequest) -> None:
    """Report to an outer agent the edits that precede this call.

    Raises:
        ThreadUnavailable: when the gateway does not answer; see `confirm_edits`.
    """
    state = cast("Mapping[str, Any]", request.state)
    turns.report_edits((await confirm_edits(caller, state)).made)
    message = turns.requesting_message(state, request.tool_call["id"] or "")
    has_siblings = message is not None and len(message.tool_calls) > 1
    if has_siblings and request.tool is not None and request.tool.return_direct:
        # Siblings that ran before a pause are in no state yet. If all calls return
        # directly, no later model call would see them there.
        turns.report_edits(await missed_edits(caller, state))


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
    except errors.KeyRefused:
        raise
    except errors.KeyturnError as error:
        raise errors.ThreadUnavailable(
            f"{error} The model was not called, because the gateway did not confirm "
            "this thread's history; resume the thread when it is back."
        ) from error


def _named_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    return [*messages.known_edits(state), *messages.carried_edits(state)]


async def fetch_reports(
    caller: Caller, history: Sequence[AnyMessage]
) -> dict[str, wire.LateReport]:
    """Return the late reports about the results among these messages, by item id.

    Without a message whose call was in doubt, no request is sent.

    Raises:
        ThreadUnavailable: when the gateway does not answer.
    """
    asked = [
        _item_of(message)
        for message in history
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
    history: Sequence[AnyMessage], reports: Mapping[str, wire.LateReport]
) -> list[AnyMessage]:
    """Return the input of a model call with every late report added once."""
    if not reports:
        return [*history]
    remaining = dict(reports)
    placed: list[AnyMessage] = []
    for message in history:
        report = remaining.get(_item_of(message)) if _is_reconciled(message) else None
        if report is not None and _is_new(message, report):
            del remaining[report.item_id]
            text = edits.defuse(texts.late_report_text(report))
            placed.append(prepend(message, [f"{MARK} {text}"]))
        else:
            placed.append(message)
    return placed


def _is_new(message: Any, report: wire.LateReport) -> bool:  # noqa: ANN401 - a ToolMessage
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
