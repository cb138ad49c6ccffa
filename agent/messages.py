"""Build the messages about edits, and about held calls that did not run.

The model reads each edit exactly once, and its message is never rewritten. An edit text
is placed inside the result of the edited call, or, if that message is gone, as a note
in the first human message. The sequence of roles does not change, because providers
refuse some sequences. Forged marks, in a tool's output or a summary, are removed or
neutralized first, so that the model can trust every marked text.

A page that renders the model's message would show the original arguments next to the
result of the edited ones. `edited_view` is a copy for display with the edited
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolCall,
    ToolMessage,
)
from pydantic import ValidationError

from keyturn.gateway.protocol import digest, edits, texts, wire
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
)
from keyturn.gateway.protocol.strict_json import JsonObject

EDIT_KEY = "keyturn_edit"
"""The key of a message's edit record."""

INSIDE_KEY = "keyturn_edits_inside"
"""The key of a result's edit records that an agent inside the tool made."""

ITEM_KEY = "keyturn_item"
"""The key of the item id in the answer to a held call."""

ANSWER_KEY = "keyturn_answer"
"""The key of the reviewers' answer, as data, in the message of a call that did not run.
"""

RECONCILED_KEY = "keyturn_reconciled"
"""Marks a result that reviewers reconciled, or may still reconcile."""

RESERVED_KEYS = (EDIT_KEY, INSIDE_KEY, ITEM_KEY, ANSWER_KEY, RECONCILED_KEY)

MAX_EDITS = 64
MAX_EDITS_CHARS = 256 * 1024
"""Limits of the stored edits; the oldest are dropped first."""

Content = str | list[str | dict[Any, Any]]
_M = TypeVar("_M", bound=BaseMessage)

EDITS_KEY = "keyturn_edits"
"""The key of the records of edited calls, by call id, in a displayed model message."""


class EditMessage(HumanMessage):
    """One edit as a message: its text, its four facts, and its record.

    State contains plain records instead of this class, so that readers without the
    class lose nothing. `edit_messages` creates these messages for a page or a separate
    history. They are not part of the agent's messages: no provider accepts a human
    message between tool calls and their results.
    """

    tool_name: str
    tool_call_id: str
    original_args: JsonObject
    edited_args: JsonObject

    @classmethod
    def of(cls, record: EditRecord) -> EditMessage:
        """Return the message of a record."""
        return cls(
            content=texts.edit_text(record),
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
    """Return every edit in an agent's state or result, oldest first.

    Args:
        state: the return value of ``graph.ainvoke(...)`` or `Keyturn.run`, or
            ``get_state(...).values``. The latter also contains edits whose messages
            were cleared or summarised.
    """
    found = {record.item_id: record for record in known_edits(state)}
    for record in carried_edits(state):
        found.setdefault(record.item_id, record)
    records = sorted(found.values(), key=lambda one: one.at_ms)
    return [EditMessage.of(one) for one in records]


def known_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    """Return the records of all edits in an agent's state, oldest first.

    Not verified: state can be rewritten. `history.confirm_edits` asks the gateway.
    """
    return _records(cast("Sequence[object]", state.get("keyturn_edits") or ()))


def carried_edits(state: Mapping[str, Any]) -> list[EditRecord]:
    """Return the edit records in a state's tool results, of any agent.

    They are not verified either.
    """
    return [
        record
        for message in cast("Sequence[object]", state.get("messages") or ())
        # Most have none, and all messages are scanned before each model call.
        if isinstance(message, ToolMessage) and message.additional_kwargs
        for record, _ in records_on(message)
    ]


def add_edits(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Merge dumped records in the order of their arrival; a reducer."""
    # A repeated record keeps its place: a dict does not move an existing key.
    by_id = {str(record["item_id"]): record for record in [*old, *new]}
    kept: list[dict[str, Any]] = []
    size = 0
    for record in reversed(list(by_id.values())[-MAX_EDITS:]):
        size += len(str(record))
        # The newest is kept, regardless of its size.
        if kept and size > MAX_EDITS_CHARS:
            break
        kept.append(record)
    return kept[::-1]


def dump_records(records: Iterable[EditRecord]) -> list[dict[str, Any]]:
    """Return records in their stored form."""
    return [record.model_dump(mode="json") for record in records]


def without_lookalikes(message: ToolMessage) -> ToolMessage:
    """Return a tool's message without forged marks and reserved keys."""
    kwargs = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key not in RESERVED_KEYS
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
        update["artifact"] = {
            k: v for k, v in members.items() if k not in RESERVED_KEYS
        }
    return message.model_copy(update=update) if update else message


def with_data(message: ToolMessage, data: Mapping[str, object]) -> ToolMessage:
    """Return a message with data for programs in addition to its text.

    The data is stored in ``additional_kwargs``, and in ``artifact`` unless the tool
    stored a value other than a mapping there.
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
    """Return a result with the texts and records of its edits.

    ``is_silent`` leaves the content unchanged, for a tool whose result a user sees
    directly; the records are added anyway.
    """
    data: dict[str, object] = {}
    if own is not None:
        data[EDIT_KEY] = own.model_dump(mode="json")
    if inside:
        data[INSIDE_KEY] = dump_records(inside)
    marked = with_data(message, data) if data else message
    if is_silent:
        return marked
    notices = [texts.edit_text(own)] if own else []
    notices += map(texts.nested_edit_text, inside)
    return prepend(marked, notices)


def with_note(message: ToolMessage, text: str) -> ToolMessage:
    """Return a result with a reviewer's note before it, forged marks neutralized."""
    return prepend(message, [edits.defuse(text)])


def mark_reconciled(message: ToolMessage) -> ToolMessage:
    """Return a result marked as one that a late report may contradict."""
    return marked(message, RECONCILED_KEY, value=True)


def marked(message: ToolMessage, key: str, value: object) -> ToolMessage:
    """Return a message with one more of the `RESERVED_KEYS`."""
    kwargs = {**message.additional_kwargs, key: value}
    return message.model_copy(update={"additional_kwargs": kwargs})


def restate_edits(
    messages: Sequence[AnyMessage],
    records: Iterable[EditRecord],
    unknown: Iterable[EditRecord] = (),
) -> list[AnyMessage]:
    """Return the input of a model call in which every edit is stated exactly once.

    The text of an ``unknown`` edit states that it has no record.
    """
    doubtful = {record.item_id: record for record in unknown}
    known = doubtful | {record.item_id: record for record in records}
    cleaned = [
        # A cheap test first: every mark begins with a bracket, and most messages have
        # none.
        message
        if isinstance(message.content, str) and "[" not in message.content
        else _without_known_texts(message, known.values())
        for message in messages
    ]
    if not known:
        return cleaned
    placed: list[AnyMessage] = []
    for message in cleaned:
        notices: list[str] = []
        if isinstance(message, ToolMessage):
            for named, is_own in records_on(message):
                # Removed, so that a second copy of this result gets no second text.
                record = known.pop(named.item_id, None)
                if record is not None:
                    text = _text_for(record, doubtful)
                    inside = text if is_own else texts.nested_edit_text(record, text)
                    notices.append(inside)
        placed.append(prepend(message, notices))
    rest = [
        texts.detached_edit_text(one, _text_for(one, doubtful))
        for one in known.values()
    ]
    return _append_notes(placed, rest)


def _text_for(record: EditRecord, doubtful: Mapping[str, EditRecord]) -> str:
    if doubtful.get(record.item_id) is record:
        return texts.unconfirmed_edit_text(record)
    return texts.edit_text(record)


def records_on(message: ToolMessage) -> list[tuple[EditRecord, bool]]:
    """Return the records on a result; True marks the record of its call."""
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
    """Return a result for people, without its edit texts."""
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
    # A cheap check first: most texts contain no edit text.
    if edits.EDIT_MARK not in text:
        return text
    # Each outcome is tried: it may have changed since the text was written.
    variants = [one.with_(outcome=each) for one in records for each in EditOutcome]
    for record in variants:
        # The plain text last: the longer forms contain it, and must be removed whole.
        for known in (
            texts.detached_edit_text(record),
            texts.nested_edit_text(record),
            texts.edit_text(record),
        ):
            text = text.replace(f"{known}\n\n", "").replace(f"\n\n{known}", "")
            text = text.replace(known, "")
    return text


def _map_content(message: _M, change: Callable[[str], str]) -> _M:
    content: Content = message.content
    cleaned = _map_texts(content, change)
    # Most messages do not change, and each is scanned before each model call.
    if cleaned == content:
        return message
    if isinstance(cleaned, list):
        # A block that was only an edit text is removed: providers refuse empty text.
        blocks = zip(content, cast("list[object]", cleaned), strict=True)
        cleaned = [
            new for old, new in blocks if old == new or new not in ("", _block(""))
        ]
    return message.model_copy(update={"content": cleaned})


def _append_notes(messages: list[AnyMessage], notes: list[str]) -> list[AnyMessage]:
    """Append notes to the first human message, or else put one before all others."""
    if not notes:
        return messages
    text = "\n\n".join(notes)
    for at, message in enumerate(messages):
        if isinstance(message, HumanMessage):
            return [*messages[:at], around(message, "", text), *messages[at + 1 :]]
    return [HumanMessage(text), *messages]


def prepend(message: _M, paragraphs: Sequence[str]) -> _M:
    """Return a message with paragraphs before its content."""
    return around(message, "\n\n".join(paragraphs), "") if paragraphs else message


def around(message: _M, before: str, after: str) -> _M:
    """Return a message with a text before its content and one after it; "" for none."""
    content: Content = message.content
    if isinstance(content, str):
        text = "\n\n".join(filter(None, (before, content, after)))
        return message.model_copy(update={"content": text})
    first, last = ([_block(text)] if text else [] for text in (before, after))
    return message.model_copy(update={"content": [*first, *content, *last]})


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


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
    message has the records under ``additional_kwargs["keyturn_edits"]``, by call id, so
    that a page can name the editor and the changes. It keeps only its text and its
    calls: a provider's own blocks would repeat the original arguments. Edit texts for
    the model are removed from the results. Do not pass these messages back to an agent.

    Args:
        messages: the messages of a thread, oldest first; they are not changed.
    """
    view = list(messages)
    for place, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            continue
        view[place] = without_edit_texts(message)
        for record, is_own in records_on(message):
            asking = _asking(view, place, message.tool_call_id) if is_own else None
            if asking is not None:
                # From the view, which already contains earlier edits of the same
                # message.
                shown = cast("AIMessage", view[asking])
                view[asking] = _edited(shown, message.tool_call_id, record)
    return view


def _asking(view: Sequence[AnyMessage], before: int, call_id: str) -> int | None:
    # Backwards: if a call id was used twice, the result belongs to the nearest call.
    for place in range(before - 1, -1, -1):
        message = view[place]
        if isinstance(message, AIMessage) and any(
            call["id"] == call_id for call in message.tool_calls
        ):
            return place
    return None


def _edited(message: AIMessage, call_id: str, record: EditRecord) -> AIMessage:
    known = message.additional_kwargs.get(EDITS_KEY, {})
    kwargs = {EDITS_KEY: {**known, call_id: record.model_dump(mode="json")}}
    if record.outcome is EditOutcome.NOT_RUN:
        kwargs = message.additional_kwargs | kwargs
        return message.model_copy(update={"additional_kwargs": kwargs})
    return AIMessage(
        str(message.text),
        id=message.id,
        name=message.name,
        tool_calls=[
            {
                **call,
                "args": digest.in_spelling_of(call["args"], record.edited_args),
            }
            if call["id"] == call_id
            else call
            for call in message.tool_calls
        ],
        usage_metadata=message.usage_metadata,
        additional_kwargs=kwargs,
    )


# Build the tool messages for held calls that did not run as the model proposed.


def message_for(
    call: ToolCall, text: str, *, item_id: str = "", is_error: bool = True
) -> ToolMessage:
    """Return a tool message with this text, forged marks neutralized."""
    return ToolMessage(
        # The text quotes people and tools, which must not imitate a gateway notice.
        content=edits.defuse(text),
        name=call["name"],
        tool_call_id=call["id"] or "",
        status="error" if is_error else "success",
        additional_kwargs={ITEM_KEY: item_id} if item_id else {},
    )


def decision_message(
    call: ToolCall, answer: wire.Answer, *, item_id: str
) -> ToolMessage:
    """Return the message for a call that people ended without running it.

    Programs find the person's text, unquoted, under `ANSWER_KEY`.
    """
    is_error = answer.type is not wire.AnswerKind.RESPOND
    message = message_for(
        call, texts.ended_text(answer), item_id=item_id, is_error=is_error
    )
    data = answer.model_dump(mode="json", include={"type", "message", "by"})
    if answer.is_question:
        data |= {"status": texts.question_status(answer)}
    if answer.type is wire.AnswerKind.RESPOND and answer.answers is not None:
        data |= {"answers": [*answer.answers]}
    return with_data(message, {ANSWER_KEY: data})


def finding_message(
    call: ToolCall, answer: wire.ReconcileAnswer, *, item_id: str
) -> ToolMessage:
    """Return the message for a call that people reconciled."""
    is_error = answer.type != "executed"
    text = texts.reconciled_text(answer)
    return mark_reconciled(message_for(call, text, item_id=item_id, is_error=is_error))
