"""Copy a conversation for display, with edited calls as they were changed.

The model's own message is never rewritten, so a page that renders it would show the
original arguments beside the result of the edited ones. This copy shows the latter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from keyturn.agent.messages import records_on, without_edit_texts
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import EditOutcome, EditRecord
from keyturn.gateway.protocol.strict_json import JsonObject

EDITS_KEY = "keyturn_edits"
"""Where a shown model message carries the records of its edited calls, by call id."""

_IDS = ("id", "call_id", "tool_call_id", "toolUseId")
_ARGS = ("args", "arguments", "input", "partial_json")
_UNNAMED = ("function_call", "functionCall", "partial_json")
"""What streams and Gemini also write of a call, without its id."""


def edited_view(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return messages for people: edited calls with their edited arguments.

    An edited call that did not run keeps its original arguments. Each changed model
    message carries the records under ``additional_kwargs["keyturn_edits"]``, by call
    id, so that a page can say who changed what. Edit texts for the model are left out
    of the results. Do not give these messages back to an agent.

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
    kwargs = dict(message.additional_kwargs)
    known = cast("Mapping[str, object]", kwargs.pop(EDITS_KEY, None) or {})
    update: dict[str, Any] = {}
    if record.outcome is not EditOutcome.NOT_RUN:
        original = next(c["args"] for c in message.tool_calls if c["id"] == call_id)
        edited = _EditedCall(
            call_id, digest.in_spelling_of(original, record.edited_args)
        )
        fields = ("content", "tool_calls", "tool_call_chunks", "response_metadata")
        found = {
            name: getattr(message, name) for name in fields if hasattr(message, name)
        }
        update = edited.shown({**found, "additional_kwargs": kwargs})
        kwargs = update["additional_kwargs"]
    dumped = record.model_dump(mode="json")
    update["additional_kwargs"] = kwargs | {EDITS_KEY: {**known, call_id: dumped}}
    return message.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class _EditedCall:
    """Replaces the arguments of one call, however a provider spells it.

    Anthropic and Bedrock write ``input`` and, from a stream, ``partial_json``,
    LangChain ``args``, OpenAI JSON text in ``arguments``, inside ``function`` or next
    to ``call_id``. A spelling without an id may be of any call, so it is dropped.
    """

    call_id: str
    args: JsonObject

    def shown(self, value: Any, *, is_own: bool = False) -> Any:  # noqa: ANN401 - a message holds any data
        """Return data of a message with the edited arguments."""
        if isinstance(value, list):
            return [self.shown(one) for one in cast("list[object]", value)]
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, Any]", value)
        ids = [members[name] for name in _IDS if members.get(name)]
        is_own = self.call_id in ids or (is_own and not ids)
        return {
            name: self._member(name, each, is_own=is_own)
            for name, each in members.items()
            if is_own or ids or name not in _UNNAMED or _has_id(each)
        }

    def _member(self, name: str, value: Any, *, is_own: bool) -> Any:  # noqa: ANN401 - likewise
        if name not in _ARGS:
            return self.shown(value, is_own=is_own)
        if not is_own:
            return value  # the arguments of another call
        is_text = isinstance(value, str)
        return json.dumps(self.args, ensure_ascii=False) if is_text else self.args


def _has_id(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return any(cast("dict[str, Any]", value).get(name) for name in _IDS)
