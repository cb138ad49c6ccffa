"""Repair the message history after new user input interrupted a turn.

LangGraph then drops the results of calls that had already run, and leaves calls without
results: the model does not see its finished calls, and providers refuse the history.
The gateway provides the outcome of recorded calls; the rest is reported as unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command
from pydantic import ValidationError

from keyturn.agent import canonical, messages, result_codec, tool_messages, turns
from keyturn.agent.bridge import ask_with_retries
from keyturn.agent.calls import Caller
from keyturn.agent.messages import ITEM_KEY
from keyturn.agent.result_codec import restore_result
from keyturn.agent.turns import TurnRecord
from keyturn.gateway.errors import FINAL_ERRORS, KeyturnError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import EditRecord, ItemState
from keyturn.gateway.protocol.wire import AnswerKind, CallOutcome, Verdict, VerdictKind

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
) -> dict[str, Any] | None:
    """Return the state update that answers all open calls; None if there are none."""
    history = cast("list[AnyMessage]", list(state.get("messages", ())))
    note = _turn_record(state)
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
    if not is_broken:
        return None
    return _update(state, rebuilt, repair)


async def end_dropped_calls(caller: Caller, state: Mapping[str, Any]) -> None:
    """End waiting calls that the graph has skipped, before its model runs.

    Another middleware can answer a call, and so can a program, with ``update_state``.
    If Keyturn runs the thread, its cards end with the run. If a program runs the graph
    itself, only this function ends them.
    """
    note = _turn_record(state)
    if note is None or run_context.current_run() is not None:
        return
    history = cast("list[AnyMessage]", list(state.get("messages", ())))
    for index, message in enumerate(history):
        if isinstance(message, AIMessage) and message.id == note.message_id:
            lost = _lost_calls(message, history[index + 1 :], note.verdicts)
            held = [note.verdicts.get(call["id"] or "") for call in lost]
            if any(one and one.kind is VerdictKind.HOLD for one in held):
                await _outcomes(caller, message)


def merge_update(
    repaired_state: dict[str, Any] | None, more: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a repair with further state updates; None when there are none."""
    if not more:
        return repaired_state
    # `_update` returns a list when tools also updated state; one more update joins it.
    if isinstance(repaired_state, list):
        commands = cast("list[Command[Any]]", repaired_state)
        return cast("dict[str, Any]", [*commands, Command(update=more)])
    both = {**(repaired_state or {}), **more}
    if repaired_state and _EDITS in repaired_state and _EDITS in more:
        # Joined here: the reducer sees only one value of each key of an update.
        both[_EDITS] = [*repaired_state[_EDITS], *more[_EDITS]]
    return both


def _turn_record(state: Mapping[str, Any]) -> TurnRecord | None:
    try:
        return TurnRecord.model_validate(state.get("keyturn_turn"))
    except ValidationError:
        return None


def _lost_calls(
    message: AIMessage, following: Sequence[AnyMessage], verdicts: Mapping[str, Verdict]
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
    verdicts: Mapping[str, Verdict],
) -> None:
    outcomes = await _outcomes(caller, message)
    for call in lost:
        call_id = call["id"] or ""
        outcome = outcomes.get(call_id)
        if outcome is None or outcome.tool != call["name"]:
            text = _without_outcome(verdicts.get(call_id))
            repair.answers[call_id] = tool_messages.message_for(call, text)
        else:
            repair.answers[call_id] = _from_outcome(repair, call, outcome)


async def _outcomes(caller: Caller, message: AIMessage) -> dict[str, CallOutcome]:
    """End the waiting calls of a turn; return the known outcomes by call id."""
    ref = None if message.id is None else turns.turn_ref(caller.agent, message.id)
    if ref is None:
        return {}
    gateway: Gateway | None = None
    try:
        gateway = caller.gateway()
        # Ended first, then read: a decision in between would authorize a call that the
        # model reads as not run.
        await ask_with_retries(caller.shell, partial(gateway.supersede, ref))
        found = await ask_with_retries(caller.shell, partial(gateway.outcomes, ref))
    # Not raised: without a repair no provider accepts the history, and the conversation
    # would end. The messages then report an unknown outcome.
    except KeyturnError as error:
        log_failure(logger, error, "repair.outcomes_unknown message=%s", message.id)
        if gateway is not None and not isinstance(error, FINAL_ERRORS):
            # Otherwise reviewers could still decide calls that no agent waits for.
            caller.unanswered.end(ref, gateway, caller.shell)
        return {}
    return {outcome.tool_call_id: outcome for outcome in found}


def _without_outcome(verdict: Verdict | None) -> str:
    """Return the message for a call without a record at the gateway.

    The call may have run anyway: at tier ``auto``, or as a call of an ungated agent
    whose messages this agent reads. Only a refusal in this agent's verdicts proves that
    it did not run.
    """
    if verdict is not None and verdict.kind is VerdictKind.DENY:
        return tool_messages.denial_text(verdict.reason)
    return tool_messages.INTERRUPTED


def _from_outcome(repair: _Repair, call: ToolCall, outcome: CallOutcome) -> ToolMessage:
    if outcome.reconcile_answer is not None:
        return tool_messages.finding_message(
            call, outcome.reconcile_answer, item_id=outcome.item_id
        )
    if outcome.state in _RAN and outcome.result is not None:
        return _from_result(repair, call, outcome)
    answer = outcome.answer
    if answer is None or answer.type in {AnswerKind.APPROVE, AnswerKind.EDIT}:
        text = tool_messages.cut_off_text(outcome.state)
        answered = tool_messages.message_for(call, text, item_id=outcome.item_id)
        # Marked: people may reconcile it later, and a late report may contradict them.
        return (
            messages.mark_reconciled(answered) if outcome.state in _OPEN else answered
        )
    return tool_messages.decision_message(call, answer, item_id=outcome.item_id)


def _from_result(repair: _Repair, call: ToolCall, outcome: CallOutcome) -> ToolMessage:
    assert outcome.result is not None  # noqa: S101 - the caller looked
    result, inside = restore_result(call, outcome.result, repair.history)
    found = result_codec.last_tool_message(result)
    message = found or tool_messages.message_for(
        call, tool_messages.RESULT_LOST, is_error=False
    )
    kwargs = {**message.additional_kwargs, ITEM_KEY: outcome.item_id}
    marked = message.model_copy(
        update={"additional_kwargs": kwargs, "tool_call_id": call["id"] or ""}
    )
    repair.updates.extend(result_codec.other_updates(result))
    own = outcome.edit and canonical.edit_as_spelled(outcome.edit, call["args"])
    repair.records.extend([own, *inside] if own else inside)
    message = messages.with_records(marked, own, inside)
    if outcome.reconciled is None:
        return message
    note = tool_messages.reconciliation_note(outcome.reconciled)
    message = messages.mark_reconciled(message)
    return messages.with_note(message, note) if note else message


def _update(
    state: Mapping[str, Any], rebuilt: list[AnyMessage], repair: _Repair
) -> dict[str, Any]:
    known = messages.known_edits(state)
    update: dict[str, Any] = {
        # All messages are replaced: results must follow their call, and the reducer can
        # only append.
        "messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *rebuilt]
    }
    fresh = [record for record in repair.records if record not in known]
    if fresh:
        update[_EDITS] = messages.dump_records(fresh)
    if not repair.updates:
        return update
    # One update per tool, so that each passes through the reducers separately.
    # LangGraph accepts a list of updates; LangChain's annotation lacks it.
    updates: list[Command[Any]] = [Command(update=update)]
    updates.extend(Command(update=members) for members in repair.updates)
    return cast("dict[str, Any]", updates)
