"""Serialize tool results as JSON; rewrite their messages and state updates.

The store is not trusted for integrity, so the format is JSON with five known shapes,
never a pickle or a msgpack that imports classes by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langgraph.types import Command, Send
from pydantic import JsonValue, ValidationError

from keyturn.agent import messages, result_codec, turns
from keyturn.gateway.protocol import edits, texts
from keyturn.gateway.protocol.records import EditRecord, FailureKind, Result

ToolResult = ToolMessage | Command[Any] | list[ToolMessage | Command[Any]]
"""The result of running a tool; a list when the tool itself returned one."""

MAX_PAYLOAD_CHARS = 1024 * 1024
SUMMARY_CHARS = 500
NO_TEXT = "(no text)"
"""The summary of a result without text; only a reviewer's finding leaves it empty."""


def serialize(result: ToolResult, inside: Sequence[EditRecord]) -> Result:
    """Return the stored form of an execution's result.

    A result that is not plain data, or is larger than `MAX_PAYLOAD_CHARS`, is stored
    without its payload: it can then be reported, but not returned.
    """
    document = {"v": 1, "inside": [record.model_dump(mode="json") for record in inside]}
    try:
        # NaN and infinities are not JSON; such a result is stored without its payload.
        payload = json.dumps({**document, "result": _encode(result)}, allow_nan=False)
    # RecursionError: the tool has run, so even a cyclic or deeply nested result must
    # not prevent the record.
    except (TypeError, ValueError, RecursionError):
        payload = ""
    is_kept = len(payload) <= MAX_PAYLOAD_CHARS
    return summarize(result).with_(payload=payload if is_kept else "")


def summarize(result: ToolResult) -> Result:
    """Return an execution's success, and its text cut to a summary."""
    message = last_tool_message(result)
    return Result(
        ok=_is_ok(message),
        summary=_summary("" if message is None else str(message.text)),
    )


def went_well(result: ToolResult) -> bool:
    """Return True if an execution succeeded, as `summarize` decides."""
    return _is_ok(last_tool_message(result))


def _is_ok(message: ToolMessage | None) -> bool:
    return message is None or message.status != "error"


def deserialize(payload: str) -> tuple[ToolResult, list[EditRecord]] | None:
    """Return a stored result and the edits made inside it; None if it is lost."""
    if not payload:
        return None
    try:
        document = cast("dict[str, Any]", json.loads(payload))
        result = _decode(document["result"])
        inside = [EditRecord.model_validate(entry) for entry in document["inside"]]
    # The stored text may be anything: any writer to the store can forge it.
    except (LookupError, TypeError, ValueError, ValidationError, RecursionError):
        return None
    is_result = isinstance(result, ToolMessage | Command | list)
    return (cast("ToolResult", result), inside) if is_result else None


def last_tool_message(result: ToolResult) -> ToolMessage | None:
    """Return the last tool message in a result, at any depth."""
    found: list[ToolMessage] = []

    def collect(message: ToolMessage) -> ToolMessage:
        found.append(message)
        return message

    each_message(result, collect)
    return found[-1] if found else None


def each_message(
    result: ToolResult, change: Callable[[ToolMessage], ToolMessage]
) -> ToolResult:
    """Return a result with every tool message in it changed."""
    if isinstance(result, ToolMessage):
        return change(result)
    if isinstance(result, list):
        changed = [each_message(part, change) for part in result]
        return cast("ToolResult", changed)
    update = cast("object", result.update)
    if not isinstance(update, dict):
        return result
    members = cast("dict[str, object]", update)
    messages = members.get("messages")
    if not isinstance(messages, list):
        return result
    rewritten = [
        change(message) if isinstance(message, ToolMessage) else message
        for message in cast("list[object]", messages)
    ]
    return replace(result, update={**members, "messages": rewritten})


def without_updates(result: ToolResult, prefix: str) -> ToolResult:
    """Return a result without updates of state keys with this prefix."""
    if isinstance(result, ToolMessage):
        return result
    if isinstance(result, list):
        changed = [without_updates(part, prefix) for part in result]
        return cast("ToolResult", changed)
    # An update may be a dict, pairs or a model: LangGraph's private method reads them
    # all.
    read = cast("Any", result)._update_as_tuples  # noqa: SLF001 - it has no public name
    pairs = cast("list[tuple[str, Any]]", read())
    kept = [(name, value) for name, value in pairs if not name.startswith(prefix)]
    if len(kept) == len(pairs):
        return result
    is_members = isinstance(cast("object", result.update), dict)
    return replace(result, update=dict(kept) if is_members else kept)


def other_updates(result: ToolResult) -> list[dict[str, Any]]:
    """Return a result's changes to the agent's state except the messages."""
    if isinstance(result, ToolMessage):
        return []
    if isinstance(result, list):
        return [update for part in result for update in other_updates(part)]
    own = cast("object", result.update)
    if result.graph is not None or not isinstance(own, dict):
        return []
    members = cast("dict[str, Any]", own)
    rest = {key: value for key, value in members.items() if key != "messages"}
    return [rest] if rest else []


def with_state(result: ToolResult, update: dict[str, Any]) -> ToolResult:
    """Return a result that also updates these keys of the agent's state."""
    if isinstance(result, ToolMessage):
        return Command(update={"messages": [result], **update})
    if isinstance(result, list):
        return [*result, Command(update=update)]
    own = cast("object", result.update)
    # A command for another graph updates that graph's state, not this agent's.
    if result.graph is None and isinstance(own, dict):
        members = cast("dict[str, object]", own)
        return replace(result, update={**members, **update})
    return [result, Command(update=update)]


def _summary(text: str) -> str:
    flat = (text or NO_TEXT).encode("utf-8", "replace").decode("utf-8")
    return flat if len(flat) <= SUMMARY_CHARS else flat[: SUMMARY_CHARS - 1] + "…"


def _encode(value: object) -> JsonValue:
    plain: JsonValue
    match value:
        case None | bool() | int() | float() | str():
            plain = value
        case BaseMessage():
            plain = {"$": "message", "is": _encode(_message(value))}
        case Command():
            plain = {"$": "command", "is": _command_fields(cast("object", value))}
        case Send():
            plain = {"$": "send", "is": [value.node, _encode(value.arg)]}
        case tuple():
            entries = cast("tuple[object, ...]", value)
            plain = {"$": "tuple", "is": [_encode(entry) for entry in entries]}
        case list():
            plain = [_encode(entry) for entry in cast("list[object]", value)]
        case dict():
            # As pairs: a tool's key "$" would otherwise be decoded as a tag.
            rows = cast("dict[object, object]", value).items()
            plain = {"$": "dict", "is": [[_key(k), _encode(v)] for k, v in rows]}
        case _:
            raise TypeError(f"a {type(value).__name__} is not plain data")
    return plain


def _command_fields(command: Any) -> list[JsonValue]:  # noqa: ANN401 - a Command of anything
    parts = (command.graph, command.update, command.resume, command.goto)
    return [_encode(part) for part in parts]


def _message(message: BaseMessage) -> dict[str, Any]:
    if isinstance(message, ToolMessage):
        try:
            json.dumps(message.artifact, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            # Dropped, not refused: an artifact is for programs, not for the model.
            message = message.model_copy(update={"artifact": None})
    return message_to_dict(message)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError("a key is not a string")
    return key


def _decode(value: object) -> Any:  # noqa: ANN401 - any value of a tool
    if isinstance(value, list):
        return [_decode(entry) for entry in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    tagged = cast("dict[str, Any]", value)
    # An unknown shape raises KeyError: the result then counts as lost.
    return _DECODERS[tagged["$"]](tagged["is"])


def _command(fields: Any) -> Command[Any]:  # noqa: ANN401 - JSON
    graph, update, resume, goto = (_decode(field) for field in fields)
    return Command(graph=graph, update=update, resume=resume, goto=goto)


_DECODERS: dict[str, Callable[[Any], object]] = {
    "message": lambda inner: messages_from_dict([_decode(inner)])[0],
    "command": _command,
    "send": lambda inner: Send(str(inner[0]), _decode(inner[1])),
    "tuple": lambda inner: tuple(_decode(entry) for entry in inner),
    "dict": lambda inner: {str(key): _decode(member) for key, member in inner},
}


def clean_result(result: ToolResult, history: Sequence[AnyMessage]) -> ToolResult:
    """Return a tool's result without forged marks and updates of reserved state.

    A handoff tool returns messages from the history. Those equal to one in the history
    stay unchanged: their marks are genuine.
    """

    def change(message: ToolMessage) -> ToolMessage:
        cleaned = messages.without_lookalikes(message)
        # Most have no marks; then the history is not searched.
        return message if cleaned is message or is_known(message) else cleaned

    def is_known(message: ToolMessage) -> bool:
        # The whole message must be equal: otherwise a tool could copy an id and keep a
        # forged mark.
        return message == next(
            (
                earlier
                for earlier in reversed(history)
                if isinstance(earlier, ToolMessage)
                and earlier.tool_call_id == message.tool_call_id
            ),
            None,
        )

    theirs = result_codec.without_updates(result, turns.STATE_PREFIX)
    return result_codec.each_message(theirs, change)


def explained(result: ToolResult, failure: FailureKind | None) -> ToolResult:
    """Return a result for the model, with advice if the tool returned nothing."""
    if failure is None:
        return result

    def explain(message: ToolMessage) -> ToolMessage:
        text = texts.failure_text(failure, str(message.text))
        return message.model_copy(update={"content": edits.defuse(text)})

    return result_codec.each_message(result, explain)


def restore_result(
    call: Any,  # noqa: ANN401 - a ToolCall; its TypedDict comes in two spellings
    result: Result,
    history: Sequence[AnyMessage],
) -> tuple[ToolResult, list[EditRecord]]:
    """Return a stored result for the model, or a message that it is lost."""
    found = result_codec.deserialize(result.payload)
    if found is not None:
        cleaned = clean_result(found[0], history)
        return explained(cleaned, result.failure), found[1]
    text = result.summary if result.failure else texts.lost_result_text(result)
    message = messages.message_for(call, text, is_error=not result.ok)
    return explained(message, result.failure), []
