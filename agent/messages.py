"""Build edit messages, and show each to the model exactly once.

The model's own message is never rewritten. An edit text stands inside the result of the
call it is about; when that message is gone, as a note in the first human message. The
sequence of roles never changes, because providers refuse some of them. Text with
our mark that we did not write (a tool's output, a summary) is removed or defused first,
so that text under our mark is always ours.

A page that renders the model's own message would show the original arguments beside the
result of the edited ones. `edited_view` is a copy for display that shows the latter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from pydantic import ValidationError

from keyturn.gateway.protocol import digest, edits
from keyturn.gateway.protocol.records import EditOutcome, EditRecord
from keyturn.gateway.protocol.strict_json import JsonObject

EDIT_KEY = "keyturn_edit"
"""Where a message carries the record of the edit it is about."""

INSIDE_KEY = "keyturn_edits_inside"
"""Where a result carries the records of edits made by an agent inside the tool."""

ITEM_KEY = "keyturn_item"
"""Where the answer to a held call carries the id of its item."""

ANSWER_KEY = "keyturn_answer"
"""Where the message of a call that did not run carries people's answer, as data."""

RECONCILED_KEY = "keyturn_reconciled"
"""Marks a result that people reconciled, or may still reconcile."""

OUR_KEYS = (EDIT_KEY, INSIDE_KEY, ITEM_KEY, ANSWER_KEY, RECONCILED_KEY)

MAX_EDITS = 64
MAX_EDITS_CHARS = 256 * 1024
"""How much about past edits is kept; the oldest are forgotten first."""

Content = str | list[str | dict[Any, Any]]
_M = TypeVar("_M", bound=BaseMessage)

EDITS_KEY = "keyturn_edits"
"""Where a shown model message carries the records of its edited calls, by call id."""

_IDS = ("id", "call_id", "tool_call_id", "toolUseId")
_ARGS = ("args", "arguments", "input", "partial_json")
_UNNAMED = ("function_call", "functionCall", "partial_json")
"""What streams and Gemini also write of a call, without its id."""


class EditMessage(HumanMessage):
    """One edit as a message: its text, its four facts, and the record beside them.

    State keeps plain records and not this class, so that a reader without it loses
    nothing; `edit_messages` makes it for a page or a history of one's own. It does
    not stand among the agent's messages: between tool calls and their results no
    provider takes a human message.
    """

    tool_name: str
    tool_call_id: str
    original_args: JsonObject
    edited_args: JsonObject

    @classmethod
    def of(cls, record: EditRecord) -> EditMessage:
        """Make the message of a record."""
        return cls(
            content=edit_text(record),
            tool_name=record.tool,
            tool_call_id=record.tool_call_id,
            original_args=record.original_args,
            edited_args=record.edited_args,
            id=f"keyturn-edit-{record.item_id}",
            additional_kwargs={EDIT_KEY: record.model_dump(mode="json")},
        )

    @property
    def record(self) -> EditRecord:
        """Return the structured record."""
        return EditRecord.model_validate(self.additional_kwargs[EDIT_KEY])


def edit_messages(state: Mapping[str, Any]) -> list[EditMessage]:
    """Return every edit that an agent's state or result names, oldest first.

    Args:
        state: what ``graph.ainvoke(...)`` or `Keyturn.run` returned, or
            ``get_state(...).values``. The latter also knows of edits whose messages
            were cleared or summarised.
    """
    found = {record.item_id: record for record in known_edits(state)}
    for record in carried_edits(state):
        found.setdefault(record.item_id, record)
    records = sorted(found.values(), key=lambda one: one.at_ms)
    return [EditMessage.of(one) for one in records]


def known_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    """Return the records of all edits that an agent's state names, oldest first.

    Not verified: state can be rewritten. `history_checks.confirm_edits` asks the
    gateway.
    """
    return _records(cast("Sequence[object]", state.get("keyturn_edits") or ()))


def carried_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    """Return the records that tool results in a state carry, of any agent.

    Not verified either.
    """
    return [
        record
        for message in cast("Sequence[object]", state.get("messages") or ())
        # Most carry nothing, and all of them are looked at before each model call.
        if isinstance(message, ToolMessage) and message.additional_kwargs
        for record, _ in records_on(message)
    ]


def add_edits(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Join dumped records in the order in which they became known; a reducer."""
    # A record that comes again keeps its place: a dict does not move a key that is set
    # again.
    by_id = {str(record["item_id"]): record for record in [*old, *new]}
    kept: list[dict[str, Any]] = []
    size = 0
    for record in reversed(list(by_id.values())[-MAX_EDITS:]):
        size += len(str(record))
        # The newest is kept however large it is.
        if kept and size > MAX_EDITS_CHARS:
            break
        kept.append(record)
    return kept[::-1]


def dump_records(records: Iterable[EditRecord]) -> list[dict[str, Any]]:
    """Return records as state keeps them."""
    return [record.model_dump(mode="json") for record in records]


def edit_text(record: EditRecord) -> str:
    """Return what the model reads about an edit; look-alikes in values are defused."""
    return _defused(edits.EDIT_MARK, edits.edit_text(record))


def unconfirmed_edit_text(record: EditRecord) -> str:
    """Return the same for an edit that the gateway has no record of."""
    return _defused(edits.UNCONFIRMED_MARK, edits.unconfirmed_edit_text(record))


def _defused(mark: str, text: str) -> str:
    return mark + edits.defuse(text.removeprefix(mark))


def nested_edit_text(record: EditRecord, text: str = "") -> str:
    """Return the edit text for the result of a tool in which another agent acted."""
    body = text or edit_text(record)
    return f"Inside this tool, about a call of {record.tool!r}: {body}"


def detached_edit_text(record: EditRecord, text: str = "") -> str:
    """Return the edit text for a message other than the result of its call."""
    return (
        "(Note by the approval gateway, not by the user, about an earlier call of "
        f"{record.tool!r}: {text or edit_text(record)})"
    )


def without_lookalikes(message: ToolMessage) -> ToolMessage:
    """Return a tool's message with forged marks defused and our keys removed."""
    kwargs = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key not in OUR_KEYS
    }
    update: dict[str, object] = {}
    content: Content = message.content
    if (defused := _map_texts(content, edits.defuse)) != content:
        update["content"] = defused
    if len(kwargs) != len(message.additional_kwargs):
        update["additional_kwargs"] = kwargs
    artifact = cast("object", message.artifact)
    if isinstance(artifact, dict):
        members = cast("dict[object, object]", artifact)
        update["artifact"] = {k: v for k, v in members.items() if k not in OUR_KEYS}
    return message.model_copy(update=update) if update else message


def with_data(message: ToolMessage, data: Mapping[str, object]) -> ToolMessage:
    """Return a message with data for programs, beside its text.

    It stands in ``additional_kwargs``, and in ``artifact`` unless the tool put
    something other than a mapping there.
    """
    update: dict[str, object] = {
        "additional_kwargs": {**message.additional_kwargs, **data}
    }
    artifact = cast("object", message.artifact)
    if artifact is None or isinstance(artifact, dict):
        members = dict(cast("Mapping[str, object]", artifact or {}))
        update["artifact"] = members | dict(data)
    return message.model_copy(update=update)


def with_records(
    message: ToolMessage,
    own: EditRecord | None,
    inside: Sequence[EditRecord] = (),
    *,
    is_silent: bool = False,
) -> ToolMessage:
    """Return a result with the edit texts and records of its edits.

    ``is_silent`` keeps the content as it is, for a tool whose result a user sees
    directly; the records are there all the same.
    """
    data: dict[str, object] = {}
    if own is not None:
        data[EDIT_KEY] = own.model_dump(mode="json")
    if inside:
        data[INSIDE_KEY] = dump_records(inside)
    marked = with_data(message, data) if data else message
    if is_silent:
        return marked
    texts = ([edit_text(own)] if own else []) + [nested_edit_text(r) for r in inside]
    return prepend(marked, texts)


def with_note(message: ToolMessage, text: str) -> ToolMessage:
    """Return a result with a note of people before it, look-alikes defused."""
    return prepend(message, [edits.defuse(text)])


def mark_reconciled(message: ToolMessage) -> ToolMessage:
    """Return a result that a late report of its executor may contradict."""
    kwargs = {**message.additional_kwargs, RECONCILED_KEY: True}
    return message.model_copy(update={"additional_kwargs": kwargs})


def restate_edits(
    messages: Sequence[AnyMessage],
    records: Iterable[EditRecord],
    unknown: Iterable[EditRecord] = (),
) -> list[AnyMessage]:
    """Return the input of a model call in which every edit is stated exactly once.

    The edit text of an ``unknown`` one says that there is no record of it.
    """
    doubtful = {record.item_id: record for record in unknown}
    known = doubtful | {record.item_id: record for record in records}
    cleaned = [
        # Every mark begins with a bracket, and most messages hold none.
        message
        if isinstance(message.content, str) and "[" not in message.content
        else _without_known_texts(message, known.values())
        for message in messages
    ]
    if not known:
        return cleaned
    placed: list[AnyMessage] = []
    for message in cleaned:
        texts: list[str] = []
        if isinstance(message, ToolMessage):
            for named, is_own in records_on(message):
                # Removed, so that a second copy of this result gets no second text.
                record = known.pop(named.item_id, None)
                if record is not None:
                    text = _text_for(record, doubtful)
                    texts.append(text if is_own else nested_edit_text(record, text))
        placed.append(prepend(message, texts))
    rest = [detached_edit_text(one, _text_for(one, doubtful)) for one in known.values()]
    return _append_notes(placed, rest)


def _text_for(record: EditRecord, doubtful: Mapping[str, EditRecord]) -> str:
    if doubtful.get(record.item_id) is record:
        return unconfirmed_edit_text(record)
    return edit_text(record)


def records_on(message: ToolMessage) -> list[tuple[EditRecord, bool]]:
    """Return the records that a result carries; True marks that of its own call."""
    kwargs = message.additional_kwargs
    own = _records([kwargs.get(EDIT_KEY)])
    found: object = kwargs.get(INSIDE_KEY)
    inside = _records(cast("list[object]", found) if isinstance(found, list) else [])
    return [(record, True) for record in own] + [(record, False) for record in inside]


def _records(entries: Iterable[object]) -> list[EditRecord]:
    found: list[EditRecord] = []
    for entry in entries:
        if entry is None:
            continue
        try:
            found.append(EditRecord.model_validate(entry))
        except ValidationError:
            continue
    return found


def without_edit_texts(message: ToolMessage) -> ToolMessage:
    """Return a result without the edit texts that it carries, for people to read."""
    named = [record for record, _ in records_on(message)]
    return (
        _map_content(message, lambda text: _without(text, named)) if named else message
    )


def _without_known_texts(
    message: AnyMessage, records: Iterable[EditRecord]
) -> AnyMessage:
    if not isinstance(message, (ToolMessage, HumanMessage)):
        return message
    ours = list(records)
    return _map_content(message, lambda text: edits.defuse(_without(text, ours)))


def _without(text: str, records: Iterable[EditRecord]) -> str:
    # A cheap check first: most texts hold no edit text.
    if edits.EDIT_MARK not in text:
        return text
    # With each outcome: what is known of it may have changed since it was told.
    told = [one.with_(outcome=each) for one in records for each in EditOutcome]
    for record in told:
        # The plain text last: the others contain it, and would lose only that part.
        for known in (
            detached_edit_text(record),
            nested_edit_text(record),
            edit_text(record),
        ):
            text = text.replace(f"{known}\n\n", "").replace(f"\n\n{known}", "")
            text = text.replace(known, "")
    return text


def _map_content(message: _M, change: Callable[[str], str]) -> _M:
    content: Content = message.content
    cleaned = _map_texts(content, change)
    # Most messages stay as they are, and each is looked at before each model call.
    if cleaned == content:
        return message
    if isinstance(cleaned, list):
        # A block that is only an edit text is removed: providers refuse empty text.
        blocks = zip(content, cast("list[object]", cleaned), strict=True)
        cleaned = [
            new
            for old, new in blocks
            if old == new or new not in ("", {"type": "text", "text": ""})
        ]
    return message.model_copy(update={"content": cleaned})


def _append_notes(messages: list[AnyMessage], notes: list[str]) -> list[AnyMessage]:
    """Append notes to the first human message, else to the last result there is."""
    if not notes:
        return messages
    humans = [i for i, m in enumerate(messages) if isinstance(m, HumanMessage)]
    results = [i for i, m in enumerate(messages) if isinstance(m, ToolMessage)]
    if not humans and not results:
        return [HumanMessage("\n\n".join(notes)), *messages]
    at = humans[0] if humans else results[-1]
    message = messages[at]
    content: Content = message.content
    text = "\n\n".join(notes)
    if isinstance(content, str):
        joined: Content = f"{content}\n\n{text}" if content else text
    else:
        joined = [*content, {"type": "text", "text": text}]
    changed = message.model_copy(update={"content": joined})
    return [*messages[:at], changed, *messages[at + 1 :]]


def prepend(message: _M, texts: Sequence[str]) -> _M:
    """Return a message with paragraphs before its content."""
    if not texts:
        return message
    text = "\n\n".join(texts)
    content: Content = message.content
    joined: Content
    if isinstance(content, str):
        joined = f"{text}\n\n{content}" if content else text
    else:
        joined = [{"type": "text", "text": text}, *content]
    return message.model_copy(update={"content": joined})


def _map_texts(content: object, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - content has the shape it came with
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        elements = cast("list[object]", content)
        return [_map_texts(element, change) for element in elements]
    if isinstance(content, dict):
        members = cast("dict[object, object]", content)
        return {key: _map_texts(value, change) for key, value in members.items()}
    return content


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
