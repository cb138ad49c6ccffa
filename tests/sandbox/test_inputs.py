"""What a person enters is checked the way Slack's client checks it."""

from datetime import UTC, date, datetime, time
from typing import Any

import pytest

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.elements import VALUE_FIELDS, initial_values
from keyturn.sandbox.inputs import REQUIRED, errors_in, merged
from keyturn.sandbox.state_values import entered
from tests.sandbox.blocks import field, options


def errors(element: dict[str, Any], value: object, **more: Any) -> dict[str, str]:
    blocks = [field("b", element, **more)]
    return errors_in(blocks, merged(blocks, {}, entered(blocks, {"b": value})))


TEXT = {"type": "plain_text_input", "min_length": 2, "max_length": 4}
NUMBER = {
    "type": "number_input",
    "is_decimal_allowed": True,
    "min_value": "0.5",
    "max_value": "10",
}
WHOLE = {"type": "number_input", "is_decimal_allowed": False}


@pytest.mark.parametrize(
    ("element", "value", "expected"),
    [
        (TEXT, "abc", None),
        (TEXT, "a", "Please enter at least 2 characters."),
        (TEXT, "abcde", "Please enter at most 4 characters."),
        (TEXT, "", REQUIRED),
        ({"type": "plain_text_input"}, "x" * 3001, "at most 3000 characters"),
        (NUMBER, 0.5, None),
        (NUMBER, "0.4", "Please enter a number of 0.5 or more."),
        (NUMBER, "11", "Please enter a number of 10 or less."),
        (NUMBER, "nan", "Please enter a valid number."),
        (NUMBER, "ten", "Please enter a valid number."),
        (WHOLE, "-3", None),
        (WHOLE, "1.5", "Please enter a whole number."),
        ({"type": "email_text_input"}, "a@b.c", None),
        ({"type": "email_text_input"}, "a@b", "valid email"),
        ({"type": "url_text_input"}, "https://example.com/x", None),
        ({"type": "url_text_input"}, "example.com", "valid URL"),
        ({"type": "datepicker"}, None, REQUIRED),
        ({"type": "checkboxes", "options": options("a")}, [], REQUIRED),
    ],
)
def test_an_entry_is_accepted_or_objected_to(
    element: dict[str, Any], value: object, expected: str | None
) -> None:
    found = errors(element, value)

    if expected is None:
        assert found == {}
    else:
        assert expected in found["b"]


@pytest.mark.parametrize(
    ("element", "state"),
    [
        ({"type": "plain_text_input"}, {"value": 7}),
        ({"type": "datepicker"}, {"selected_date": "24.12.2026"}),
        (
            {"type": "static_select", "options": options("a")},
            {"selected_option": {"value": "b"}},
        ),
        (
            {"type": "checkboxes", "options": options("a")},
            {"selected_options": [{"value": "a"}, {"value": "b"}]},
        ),
        ({"type": "multi_users_select"}, {"selected_users": "U0ANA"}),
        ({"type": "external_select"}, {"selected_option": "a"}),
    ],
)
def test_odd_values_are_refused(element: dict[str, Any], state: dict[str, Any]) -> None:
    blocks = [field("b", element)]

    with pytest.raises(ApiError, match="invalid_values"):
        merged(blocks, {}, {"b": {"value": state}})


@pytest.mark.parametrize(
    ("element", "value", "state"),
    [
        ({"type": "datepicker"}, date(2026, 12, 24), {"selected_date": "2026-12-24"}),
        ({"type": "timepicker"}, time(9, 5), {"selected_time": "09:05"}),
        (
            {"type": "datetimepicker"},
            datetime(2026, 12, 24, tzinfo=UTC),
            {"selected_date_time": 1798070400},
        ),
        ({"type": "number_input"}, 7, {"value": "7"}),
        (
            {"type": "static_select", "options": options("a", "b")},
            "b",
            {"selected_option": options("b")[0]},
        ),
        (
            {"type": "checkboxes", "options": options("a", "b")},
            ["a", "b"],
            {"selected_options": options("a", "b")},
        ),
        ({"type": "users_select"}, "U0ANA", {"selected_user": "U0ANA"}),
        ({"type": "plain_text_input"}, True, {"value": "true"}),
    ],
)
def test_a_plain_value_becomes_slacks_state(
    element: dict[str, Any], value: object, state: dict[str, Any]
) -> None:
    blocks = [field("b", element)]

    values = entered(blocks, {"b": value})
    by_action = entered(blocks, {"value": value})

    assert values == by_action == {"b": {"value": {"type": element["type"], **state}}}
    assert merged(blocks, {}, values) == values


def test_a_name_that_no_input_has_is_pointed_out() -> None:
    with pytest.raises(LookupError, match="No input is called 'c'"):
        entered([field("b", {"type": "plain_text_input"})], {"c": "x"})


@pytest.mark.parametrize("kind", sorted(VALUE_FIELDS))
def test_every_input_type_starts_with_its_initial_value(kind: str) -> None:
    holding = VALUE_FIELDS[kind]
    blank, filled = field("b", {"type": kind}), field("b", {"type": kind})
    filled["element"][holding.initial or "none"] = "initial"

    empty = initial_values([blank])["b"]["value"]
    full = initial_values([filled])["b"]["value"]

    assert empty == {"type": kind, holding.key: holding.empty}
    expected = "initial" if holding.initial else holding.empty
    assert full == {"type": kind, holding.key: expected}
