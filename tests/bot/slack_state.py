"""Give back the state of a modal's inputs as Slack would, typed into or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keyturn.bot.modals.form import InvalidInputs

State = dict[str, dict[str, dict[str, Any]]]

_PICKERS = {
    "datepicker": ("selected_date", "initial_date"),
    "timepicker": ("selected_time", "initial_time"),
    "datetimepicker": ("selected_date_time", "initial_date_time"),
}


def untouched(blocks: Any) -> State:
    """Return ``state.values`` of a modal that was opened and submitted at once."""
    return {
        block["block_id"]: {block["element"]["action_id"]: _held(block["element"])}
        for block in blocks
        if block["type"] == "input"
    }


def typed(state: State, block_id: str, value: str | int | None) -> State:
    """Return the state with another text, number or date in one input."""
    ((action_id, held),) = state[block_id].items()
    key, _ = _PICKERS.get(held["type"], ("value", ""))
    return state | {block_id: {action_id: held | {key: value}}}


def chosen(state: State, block_id: str, *values: str) -> State:
    """Return the state with other choices in one menu."""
    ((action_id, held),) = state[block_id].items()
    options = [{"value": value} for value in values]
    if "selected_options" in held:
        new = held | {"selected_options": options}
    else:
        new = held | {"selected_option": options[0]}
    return state | {block_id: {action_id: new}}


def _held(element: Any) -> dict[str, Any]:
    kind = element["type"]
    held: dict[str, Any] = {"type": kind}
    if kind in {"static_select", "radio_buttons"}:
        held["selected_option"] = element.get("initial_option")
    elif kind in {"multi_static_select", "checkboxes"}:
        held["selected_options"] = element.get("initial_options", [])
    elif kind in _PICKERS:
        key, initial = _PICKERS[kind]
        held[key] = element.get(initial)
    else:
        held["value"] = element.get("initial_value")
    return held


def refused(read: Callable[..., object], *given: object) -> dict[str, str]:
    """Return why a submitted form is refused, by block id."""
    with pytest.raises(InvalidInputs) as caught:
        read(*given)
    return caught.value.errors
