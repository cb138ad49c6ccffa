"""Evaluate a cell: executions equal approvals, and messages equal records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol import edits
from keyturn.gateway.protocol.records import EditOutcome, ItemState
from tests.conformance.scenes import Choice, Failure, Scene
from tests.conformance.topologies import TOPOLOGIES

PAID = {ItemState.EXECUTED, ItemState.FAILED}
ENDS = {
    Choice.REJECT: ItemState.REJECTED,
    Choice.RESPOND: ItemState.ANSWERED,
    Choice.EXPIRE: ItemState.EXPIRED,
    Choice.SUPERSEDE: ItemState.SUPERSEDED,
}
WORDS = {
    ItemState.REJECTED: "rejected this call",
    ItemState.ANSWERED: "answered it instead",
    ItemState.EXPIRED: "Nobody decided in time",
    ItemState.SUPERSEDED: "moved on",
}
KINDS = {
    ItemState.REJECTED: "reject",
    ItemState.ANSWERED: "respond",
    ItemState.EXPIRED: "expired",
    ItemState.SUPERSEDED: "superseded",
}
LOOKALIKE = re.compile(r"\[not-keyturn:")


def differences(scene: Scene, items: Sequence[Item]) -> list[str]:
    """Return everything that is not as it should be, as sentences."""
    payments = [item for item in items if item.tool == scene.tool_name]
    return [
        *_counted(scene, payments),
        *_executed(scene, payments),
        *_ended(scene, payments),
        *(_returned(scene, payments) if _topology(scene).steps else ()),
        *(() if _topology(scene).steps else _told(scene, payments)),
    ]


def _topology(scene: Scene) -> Any:
    return TOPOLOGIES[scene.cell.topology]


def _counted(scene: Scene, items: Sequence[Item]) -> Iterator[str]:
    topology = _topology(scene)
    asked = topology.payments
    if scene.cell.choice is Choice.SUPERSEDE:
        asked = topology.first
    if len(items) != asked:
        yield f"people were asked about {len(items)} payments, not {asked}"


def _executed(scene: Scene, items: Sequence[Item]) -> Iterator[str]:
    """Executions equal the recorded ones, once each, with the approved amount."""
    left = [*scene.ledger]
    for item in items:
        order, amount = str(item.args["order"]), cast("float", item.args["amount"])
        ran = [entry for entry in left if entry[0] == order]
        left = [entry for entry in left if entry[0] != order]
        should = [(order, amount)] if item.state in PAID else []
        if ran != should:
            yield f"{order} is {item.state}, so it should have run {should}, not {ran}"
    if left:
        yield f"nobody approved {left}"


def _ended(scene: Scene, items: Sequence[Item]) -> Iterator[str]:
    """Each item has the state of the cell's decision."""
    is_failed = scene.cell.failure is Failure.RAISES
    ran = ItemState.FAILED if is_failed else ItemState.EXECUTED
    should = ENDS.get(scene.cell.choice, ran)
    for item in items:
        if item.state is not should:
            yield f"{item.args['order']} is {item.state}, not {should}"
        is_edited = item.edit is not None
        if is_edited != (scene.cell.choice is Choice.EDIT):
            yield f"{item.args['order']} is edited: {is_edited}"


def _returned(scene: Scene, items: Sequence[Item]) -> Iterator[str]:
    """A plain step returns the recorded result."""
    if scene.cell.choice is Choice.SUPERSEDE:
        return
    found: Any = scene.final
    is_state = scene.cell.topology == "steps"
    outcomes = cast("list[list[str]]", found["outcomes"] if is_state else found)
    for item, (kind, text) in zip(items, outcomes, strict=True):
        order, amount = item.args["order"], cast("float", item.args["amount"])
        if item.state is ItemState.EXECUTED and scene.cell.failure is Failure.KILLED:
            is_so = kind == "unsure" and "confirmed that it took effect" in text
        elif item.state is ItemState.EXECUTED:
            is_so = (kind, text) == ("approved", f"paid {order} {amount:g}")
        elif item.state is ItemState.FAILED:
            is_so = kind == "unsure" and "the bank hung up" in text
        else:
            is_so = kind == KINDS[item.state]
        if not is_so:
            yield f"the step of {order}, which is {item.state}, returned {kind}: {text}"


def _told(scene: Scene, items: Sequence[Item]) -> Iterator[str]:
    """No model reads anything untrue, and each reads the required messages."""
    for label, messages in scene.everything_read():
        for item in items:
            yield from _untrue(label, messages, item)
        text = "\n".join(_texts(messages))
        if LOOKALIKE.search(text):
            yield f"{label} reads a genuine notice as a forgery"
    for item in items:
        yield from _heard(scene, item)
    if scene.cell.choice is Choice.EDIT:
        for label in _topology(scene).hears:
            last = scene.inputs(label)[-1]
            for item in items:
                if (count := _notices(last, item)) != 1:
                    yield f"{label} ends with {count} notices of {item.args['order']}"


def _untrue(label: str, messages: Sequence[BaseMessage], item: Item) -> Iterator[str]:
    order = item.args["order"]
    if _notices(messages, item) > 1:
        yield f"{label} reads the edit of {order} more than once"
    for message in _answers(messages, item):
        text = str(message.text)
        if item.state in PAID and "did not run" in text:
            yield f"{label} reads that {order} did not run, but it did: {text!r}"
        if item.state not in PAID and f"paid {order}" in text:
            yield f"{label} reads that {order} ran, but it did not: {text!r}"


def _heard(scene: Scene, item: Item) -> Iterator[str]:
    """The agent that made a call, or the next one, reads its result."""
    if item.state is ItemState.SUPERSEDED:
        return  # not required: the turn is over
    order, amount = item.args["order"], cast("float", item.args["amount"])
    told = [
        str(message.text)
        for _, messages in scene.everything_read()
        for message in _answers(messages, item)
    ]
    words = WORDS.get(item.state, f"paid {order} {amount:g}")
    if item.state is ItemState.FAILED:
        words = "the bank hung up"
    elif scene.cell.failure is Failure.KILLED and item.state is ItemState.EXECUTED:
        words = "took effect"
    if not any(words in text for text in told):
        yield f"nobody reads {words!r} of {order}, which is {item.state}: {told[-1:]}"
    if item.edit is not None:
        own = [label for label, read in scene.everything_read() if _notices(read, item)]
        if not own:
            yield f"nobody reads that {order} was edited"


def _answers(messages: Sequence[BaseMessage], item: Item) -> list[ToolMessage]:
    """Return the results of an item's call among the messages of its agent."""
    makers = {
        call["id"]: call["args"].get("order")
        for message in messages
        for call in getattr(message, "tool_calls", ())
    }
    call_id = item.ctx.tool_call_id
    if makers.get(call_id) != item.args["order"]:
        return []
    return [
        message
        for message in messages
        if isinstance(message, ToolMessage) and message.tool_call_id == call_id
    ]


def _notices(messages: Sequence[BaseMessage], item: Item) -> int:
    if item.edit is None:
        return 0
    # Its outcome may have been another one when an agent read of it first.
    told = [edits.edit_text(item.edit.with_(outcome=each)) for each in EditOutcome]
    return sum(text.count(each) for text in _texts(messages) for each in told)


def _texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [
        str(message.text)
        for message in messages
        if isinstance(message, ToolMessage | HumanMessage)
    ]
