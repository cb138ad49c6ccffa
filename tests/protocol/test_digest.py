"""Hashes bind exactly one call, one batch, one card."""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject, accept, parse

CTX = {"tenant": "d", "agent": "a", "thread": "t", "ns": "", "message_id": "m"}
HASHES = st.integers(0, 2**32).map(
    lambda n: "sha256:" + hashlib.sha256(str(n).encode()).hexdigest()
)
ITEMS = st.lists(st.tuples(st.uuids().map(str), HASHES), min_size=1, max_size=6)


def document(**changes: object) -> str:
    given_: dict[str, object] = {
        "tool": "refund",
        "args": {"amount": 1},
        "ctx": CTX,
        "salt": "0" * 32,
        **changes,
    }
    return digest.action_document(**given_)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - a test passes one changed field at a time


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "refund2"},
        {"args": {"amount": 2}},
        {"args": {"amount": 1, "x": None}},
        {"ctx": {**CTX, "ns": "sub:1"}},
        {"ctx": {**CTX, "thread": "t2"}},
        {"salt": "1" * 32},
    ],
)
def test_any_change_of_a_call_is_another_action(change: dict[str, object]) -> None:
    before, after = document(), document(**change)

    assert digest.action_hash(before) != digest.action_hash(after)


def test_key_order_and_number_spelling_do_not_change_an_action() -> None:
    one = document(args={"a": 1, "b": 2.0})
    other = document(args={"b": 2, "a": 1.0})

    assert digest.action_hash(one) == digest.action_hash(other)


def test_what_is_hashed_is_what_runs() -> None:
    text = document(args={"note": "€ ünï", "n": [1, {"x": None}]})

    assert digest.action_args(text) == {"note": "€ ünï", "n": [1, {"x": None}]}


def test_a_call_over_64_kib_is_refused() -> None:
    with pytest.raises(BadJson, match="65536 are allowed"):
        document(args={"text": "x" * 65_536})


def test_the_action_hash_is_sha256_over_tag_nul_and_bytes() -> None:
    text = document()

    expected = hashlib.sha256(b"keyturn/v1/action\x00" + text.encode()).hexdigest()

    assert digest.action_hash(text) == f"sha256:{expected}"


@given(ITEMS, st.data())
def test_no_change_of_a_batch_keeps_its_digest(
    items: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Insert, drop, reorder, double, borrow: each is another batch."""
    before = digest.batch_digest("ap_1", items)
    place = data.draw(st.integers(0, len(items) - 1))
    other = ("it_other", "sha256:" + "f" * 64)

    changed = [
        [*items[:place], other, *items[place:]],
        [*items[:place], *items[place + 1 :]],
        [*items, items[place]],
        [*items[:place], (items[place][0], other[1]), *items[place + 1 :]],
        [*items[:place], (other[0], items[place][1]), *items[place + 1 :]],
    ]
    if len(set(items)) > 1:
        changed.append(items[::-1] if items[::-1] != items else [*items[1:], items[0]])

    assert all(digest.batch_digest("ap_1", rows) != before for rows in changed)
    assert digest.batch_digest("ap_2", items) != before


@pytest.mark.parametrize("args", [[], "a", None])
def test_arguments_that_are_no_object_are_none(args: object) -> None:
    with pytest.raises(BadJson, match="the arguments are not an object"):
        digest.action_args(json.dumps({"args": args}))


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**53) + 1, 2**53 - 1)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_the_text_of_arguments_is_cut_out_as_it_is_made(args: JsonObject) -> None:
    document = digest.action_document(
        tool="refund", args=args, ctx={"agent": 'a"}'}, salt="00"
    )

    assert digest.canonical_args(document) == digest.canonical(args).decode()


def test_arguments_of_a_document_in_another_order_are_found_as_well() -> None:
    document = '{"tool": "refund", "args": {"b": 1.0, "a": "x"}}'

    assert digest.canonical_args(document) == '{"a":"x","b":1}'


@pytest.mark.parametrize("document", ['{"args":', "{}x", '{"args":}', '{"args": 7}'])
def test_what_is_no_action_document_has_no_arguments(document: str) -> None:
    with pytest.raises(BadJson):
        digest.canonical_args(document)


NUMBERS = st.integers(-(2**53) + 2, 2**53 - 2) | st.floats(
    allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15
)
TEXTS = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


@given(JSON)
def test_canonical_bytes_are_those_of_the_library(value: Any) -> None:
    assert digest.canonical(value) == rfc8785.dumps(value)


@given(JSON)
def test_what_is_parsed_is_what_a_strict_reader_of_the_bytes_gets(value: Any) -> None:
    strict = parse(digest.canonical(value))

    # By their texts as well: 1 == 1.0 == True.
    assert repr(digest.parsed(value)) == repr(strict)


def test_keys_are_ordered_by_their_utf_16_code_units() -> None:
    # By code points it would be the other way round.
    assert digest.canonical({"\uffff": 1, "\U0001f600": 2}) == (
        '{"\U0001f600":2,"\uffff":1}'.encode()
    )


class _Text(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


# Few values, so that two of them are often equal; some only look equal.
ALIKE = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, 0.0, -0.0, 1.0, 2**53, "", "1", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "\ud800"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(ALIKE, ALIKE)
def test_values_are_the_same_where_their_bytes_are(one: Any, other: Any) -> None:
    def have_the_same_bytes(one: Any, other: Any) -> bool:
        try:
            return digest.canonical(one) == digest.canonical(other)
        except BadJson:
            return False

    assert digest.same(one, other) == have_the_same_bytes(one, other)
    assert digest.same(one, one) == have_the_same_bytes(one, one)


@pytest.mark.parametrize(
    "value",
    [
        _nested(65),
        2**63,
        -(2**63),
        float(2**53),
        1e20,
        float("nan"),
        float("inf"),
        "\ud800",
        {"\ud800": 1},
        {1: "a"},
        {None: "a"},
        (1,),
        b"1",
        {"a": {1, 2}},
        [1, 2**63],
        [-(2**63)],
    ],
)
def test_what_is_no_strict_json_has_no_canonical_bytes(value: Any) -> None:
    for refuses in (digest.canonical, digest.parsed, accept):
        with pytest.raises(BadJson):
            refuses(value)


def test_a_class_derived_from_a_plain_one_leaves_nothing_of_itself() -> None:
    found = accept({_Text("key"): [_Text("value")]})

    assert isinstance(found, dict)
    [(key, [value])] = cast("Any", found).items()
    assert (type(key), type(value)) == (str, str)
    assert digest.canonical({_Text("key"): 1}) == b'{"key":1}'
    [(key, value)] = cast("Any", digest.parsed({_Text("key"): _Text("value")})).items()
    assert (type(key), type(value)) == (str, str)


@pytest.mark.parametrize("inner", ["x", [], {}, 1, ["x"], {"x": "y"}, [1, "x"]])
@pytest.mark.parametrize("depth", range(62, 67))
def test_a_nesting_too_deep_is_not_hashed(inner: Any, depth: int) -> None:
    nested = inner
    for n in range(depth):
        nested = {"k": nested} if n % 2 else [nested]

    try:
        accepted = rfc8785.dumps(accept(nested))
    except BadJson:
        with pytest.raises(BadJson):
            digest.canonical(nested)
    else:
        assert digest.canonical(nested) == accepted
