"""For any schema, submitting an unchanged form changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.modals import edit
from keyturn.bot.modals.form import InvalidInputs, build_form, read_form
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.markup_audit import assert_tame
from tests.bot.samples import an_approval, an_item, frame
from tests.bot.slack_state import untouched
from tests.bot.strategies import hostile, json_values, numbers, quick
from tests.levels import examples

_quick = quick(100)

_clocks = st.sampled_from(["14:30", "14:30:00", "00:00:00.000", "23:59:07"])
_scalars = st.one_of(st.none(), st.booleans(), numbers, hostile)
_enum = st.lists(_scalars, max_size=5)
_words = st.text(st.sampled_from("abcé 1,.-"), min_size=1, max_size=30)
_zones = st.sampled_from(["", "Z", "+01:00", "-03:30", "+00:00"])
_days = st.dates().map(str)


def _joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


_moments = {
    "date": _days,
    "time": _joined(st.times().map(str) | _clocks, _zones),
    "date-time": _joined(_days, st.just("T"), _clocks, _zones),
}
_ends = st.sampled_from(["\n", "\n\n", " ", "", "\n \n", "x" * 3500, "\u0301"])
_long_texts = st.lists(
    _joined(_words.map(lambda words: words * 100), _words, _ends),
    min_size=1,
    max_size=12,
).map("".join)
"""Texts of up to 60,000 characters that have places to be cut, or have none."""

_leaf: st.SearchStrategy[Any] = st.one_of(
    st.just({}),
    st.just({"type": ["string", "null"], "maxLength": 5}),
    st.sampled_from(["string", "number", "integer", "boolean", "array", "null"]).map(
        lambda kind: {"type": kind}
    ),
    st.sampled_from(["date", "time", "date-time"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.just({"type": "array", "items": {"type": "string"}}),
    st.just({"type": ["string", "null"], "format": "date-time"}),
    st.just({"type": "string", "x-long": True}),
    st.just({"$ref": "#/$defs/x"}),
    st.just({"$ref": "#/$defs/missing"}),
    st.just({"anyOf": [{"type": "number"}, {"type": "null"}]}),
    st.just({"anyOf": [{"type": "number"}, {"type": "string"}]}),
    _enum.map(lambda values: {"enum": values}),
    _enum.map(lambda values: {"type": "array", "items": {"enum": values}}),
    hostile.map(lambda text: {"type": "string", "description": text}),
)
_schema: st.SearchStrategy[Any] = st.recursive(
    _leaf,
    lambda inner: st.dictionaries(hostile, inner, max_size=4).map(
        lambda members: {
            "type": "object",
            "properties": members,
            "required": list(members)[::2],
        }
    ),
    max_leaves=8,
)


@st.composite
def _fitting(draw: st.DrawFn, schema: Any) -> Any:
    """Draw a value that mostly fits a schema."""
    if draw(st.integers(0, 9)) == 0:
        return draw(json_values)
    if schema.get("enum"):
        return draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    if kind == "object":
        names = [name for name in schema["properties"] if draw(st.booleans())]
        return {name: draw(_fitting(schema["properties"][name])) for name in names}
    if kind == "array" and schema.get("items", {}).get("enum"):
        return draw(st.lists(st.sampled_from(schema["items"]["enum"]), max_size=4))
    texts = _long_texts if "x-long" in schema else hostile
    plain = {
        "array": st.lists(hostile | _words, max_size=6),
        "string": _moments.get(schema.get("format"), texts),
        "number": numbers,
        "integer": st.integers(-1000, 1000),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    strategy: st.SearchStrategy[Any] = plain.get(str(kind), json_values)
    return draw(strategy)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Any, JsonObject]:
    properties = draw(st.dictionaries(hostile, _schema, max_size=5))
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties)[1:],
        "$defs": {"x": {"type": "string"}},
    }
    args: Any = draw(_fitting(schema))
    extra: JsonObject = draw(st.dictionaries(hostile, json_values, max_size=2))
    return schema, {**args, **extra} if isinstance(args, dict) else extra


@settings(_quick, max_examples=examples(1000))
@given(_cases())
def test_an_untouched_form_keeps_every_argument_as_it_is(case: Any) -> None:
    schema, args = case
    item = an_item(args, args_schema=schema)

    view: Any = edit.view(frame(an_approval(item)), 0)
    found = read_form(item, untouched(view["blocks"]))

    assert validate_modal(view) == []
    assert_tame(view)
    assert not found.changed
    assert digest.canonical(found.args) == digest.canonical(item.args)


@_quick
@given(_cases(), st.data())
def test_the_form_answers_any_input(case: Any, data: st.DataObject) -> None:
    schema, args = case
    item = an_item(args, args_schema=schema)
    state = untouched(build_form(item).blocks)
    junk = st.one_of(
        st.none(), hostile, numbers.map(str), st.lists(hostile), st.just({"value": 1})
    )

    for inputs in state.values():
        for held in inputs.values():
            for key in held.keys() - {"type"}:
                held[key] = data.draw(junk)
    errors = set[str]()
    try:
        digest.canonical(read_form(item, state).args)
    except InvalidInputs as refusal:
        errors = {*refusal.errors}

    assert errors <= set(state)
