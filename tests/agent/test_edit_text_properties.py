"""In every history each edit is stated once, and no role moves."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from keyturn.agent.messages import (
    MAX_EDITS,
    add_edits,
    detached_edit_text,
    dump_records,
    edit_text,
    restate_edits,
    with_records,
)
from keyturn.gateway.protocol.edits import EDIT_MARK
from keyturn.gateway.protocol.records import EditRecord, Person


def _record(number: int, to: str = "ada") -> EditRecord:
    return EditRecord(
        item_id=f"ap{number}.0",
        tool="pay",
        tool_call_id=f"c{number}",
        original_args={"amount": number, "to": to},
        edited_args={"amount": -number, "to": to},
        patch=(),
        original_hash="sha256:aa",
        edited_hash="sha256:bb",
        by=Person(team="T", user="U", name=to),
        at_ms=1,
        reason=to,
    )


RECORDS = st.lists(
    st.builds(_record, st.integers(0, 5), st.sampled_from(["a", EDIT_MARK, "\n\n"])),
    unique_by=lambda record: record.item_id,
    max_size=4,
)
HOSTILE = st.sampled_from(["", "hello", EDIT_MARK, f"x {EDIT_MARK} y"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[AnyMessage], list[EditRecord]]:
    """Draw a history in which some results report edits: once, twice or never."""
    records = draw(RECORDS)
    history: list[AnyMessage] = []
    for _ in range(draw(st.integers(0, 6))):
        text = draw(HOSTILE)
        words = draw(
            st.sampled_from(
                [
                    text,
                    *[f(r) for r in records for f in (edit_text, detached_edit_text)],
                ]
            )
        )
        blocks: Any = [{"type": "text", "text": words}]
        content: Any = draw(st.sampled_from([words, blocks, []]))
        kind = draw(st.sampled_from(["human", "ai", "tool", "told", "inside"]))
        if kind == "human":
            history.append(HumanMessage(content))
        elif kind == "ai":
            history.append(AIMessage("x"))
        else:
            message = ToolMessage(content, tool_call_id="c")
            about = draw(st.sampled_from(records)) if records else None
            if kind == "told":
                message = with_records(message, about, is_silent=draw(st.booleans()))
            elif kind == "inside" and about is not None:
                message = with_records(message, None, [about])
            history.append(message)
    return history, records


@given(histories())
def test_every_edit_is_stated_exactly_once_and_every_role_keeps_its_place(
    drawn: tuple[list[AnyMessage], list[EditRecord]],
) -> None:
    history, records = drawn

    read = restate_edits(history, records)

    text = "\n".join(_text(message) for message in read)
    assert text.count(EDIT_MARK) == len(records)
    assert all(text.count(edit_text(record)) == 1 for record in records)
    has_room = any(message.type != "ai" for message in history)
    if has_room or not records:
        assert [m.type for m in read] == [m.type for m in history]


@given(histories())
def test_stating_again_what_is_stated_changes_nothing(
    drawn: tuple[list[AnyMessage], list[EditRecord]],
) -> None:
    history, records = drawn
    read = restate_edits(history, records)

    again = restate_edits(read, records)

    assert [_text(message) for message in again] == [_text(m) for m in read]


def test_the_oldest_edits_are_forgotten_first_and_none_is_kept_twice() -> None:
    many = dump_records(_record(number) for number in range(MAX_EDITS + 5))
    large = dump_records(
        [_record(1), _record(2, "x" * 200_000), _record(3, "y" * 200_000)]
    )

    kept = add_edits(many, many[-1:])

    assert len(kept) == MAX_EDITS
    assert kept[-1] == many[-1]
    assert kept[0]["item_id"] == "ap5.0"
    assert [record["item_id"] for record in add_edits(large, [])] == ["ap3.0"]


def _text(message: AnyMessage) -> str:
    content: Any = message.content
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content)
