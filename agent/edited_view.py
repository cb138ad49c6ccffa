"""Copy a conversation for display, with edited calls as they were executed.

The model's own message is never rewritten, so a page that renders it would show the
requested arguments beside the result of the edited ones. This copy shows the latter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from twokey.agent.messages import records_on, without_edit_texts
from twokey.gateway.protocol.records import EditRecord
from twokey.gateway.protocol.strict_json import JsonObject

EDITS_KEY = "twokey_edits"
"""Where a shown model message carries the records of its edited calls, by call id."""


def edited_view(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return messages for people: edited calls with their executed arguments.

    Each changed model message carries the records under
    ``additional_kwargs["twokey_edits"]``, by call id, so that a page can say who
    changed what. Edit texts for the model are left out of the results. Do not give
    these messages back to an agent.

    Args:
        messages: of a thread, oldest first; they are not changed.
    """
    view = list(messages)
    for place, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            continue
        view[place] = without_edit_texts(message)
        for record, is_own in records_on(message):
            asking = _asking(view, place, message.tool_call_id) if is_own else None
            if asking is not None:
                # From the view: an earlier edit of the same message is in it already.
                shown = cast("AIMessage", view[asking])
                view[asking] = _edited(shown, message.tool_call_id, record)
    return view


def _asking(view: Sequence[AnyMessage], before: int, call_id: str) -> int | None:
    # Backwards: where a call id was used twice, the result is of the nearest call.
    for place in range(before - 1, -1, -1):
        message = view[place]
        if isinstance(message, AIMessage) and any(
            call["id"] == call_id for call in message.tool_calls
        ):
            return place
    return None


def _edited(message: AIMessage, call_id: str, record: EditRecord) -> AIMessage:
    args = record.executed
    calls = [
        {**call, "args": args} if call["id"] == call_id else call
        for call in message.tool_calls
    ]
    kwargs = dict(message.additional_kwargs)
    known = cast("Mapping[str, object]", kwargs.get(EDITS_KEY) or {})
    kwargs[EDITS_KEY] = {**known, call_id: record.model_dump(mode="json")}
    if isinstance(kwargs.get("tool_calls"), list):
        raw = cast("list[dict[str, Any]]", kwargs["tool_calls"])
        kwargs["tool_calls"] = [_edited_raw(one, call_id, args) for one in raw]
    update: dict[str, object] = {"tool_calls": calls, "additional_kwargs": kwargs}
    if isinstance(message.content, list):
        update["content"] = [
            _edited_block(block, call_id, args)
            for block in cast("list[object]", message.content)
        ]
    return message.model_copy(update=update)


def _edited_raw(call: dict[str, Any], call_id: str, args: JsonObject) -> dict[str, Any]:
    """Return a call as OpenAI's chat API has it, with other arguments."""
    if call.get("id") != call_id:
        return call
    return {**call, "function": {**call["function"], "arguments": _text(args)}}


def _edited_block(block: object, call_id: str, args: JsonObject) -> object:
    """Return a content block, with other arguments when it is this call.

    Anthropic and Bedrock say ``tool_use`` and ``input``, LangChain ``tool_call`` and
    ``args``, OpenAI's responses ``function_call`` with JSON text in ``arguments``.
    """
    if not isinstance(block, dict):
        return block
    members = cast("dict[str, Any]", block)
    match members.get("type"):
        case "tool_use" if members.get("id") == call_id:
            return {**members, "input": args}
        case "tool_call" if members.get("id") == call_id:
            return {**members, "args": args}
        case "function_call" if members.get("call_id") == call_id:
            return {**members, "arguments": _text(args)}
        case _:
            return members


def _text(args: JsonObject) -> str:
    return json.dumps(args, ensure_ascii=False)
