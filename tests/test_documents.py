"""YAML comes in through one strict door, and every problem has its line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.documents import BadDocument, parse_yaml

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"\A[a-z]{1,8}\Z"), inner, max_size=3)
    ),
    max_leaves=12,
)


def refusal(text: str) -> str:
    with pytest.raises(BadDocument) as caught:
        parse_yaml(text, "a.yml")
    return str(caught.value)


@given(JSON)
def test_json_is_read_as_the_json_it_is(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)

    assert parse_yaml(text, "a.yml").value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("2026-11-21", "2026-11-21"),
        ("010", "010"),
        ("~", None),
        ("", None),
        ("true", True),
        ("1.5e3", 1500.0),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_plain_scalar_means_what_yaml_1_2_says(text: str, value: object) -> None:
    read = parse_yaml(text, "a.yml").value

    assert (read, type(read)) == (value, type(value))


def test_every_value_remembers_the_line_of_its_key() -> None:
    document = parse_yaml("a: 1\nb:\n  c:\n    - x\n    - y\n", "a.yml")

    assert document.location(("a",)) == "a.yml:1"
    assert document.location(("b", "c")) == "a.yml:3"
    assert document.location(("b", "c", 1)) == "a.yml:5"
    assert document.location(("b", "missing", "deeper")) == "a.yml:2"


def test_the_lines_under_a_key_are_those_of_the_file() -> None:
    document = parse_yaml("a: 1\npolicy:\n  version: 1\n", "a.yml").under("policy")

    assert document.value == {"version": 1}
    assert document.location(("version",)) == "a.yml:3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "a.yml:3: Key 'a' appears twice; the first is in line 1."),
        ("a: &x 1\nb: *x", "a.yml:1: Anchors and aliases are not accepted"),
        ("a: *x", "a.yml:1: Anchors and aliases are not accepted"),
        ("a:\n  !!python/object:os.system x", "a.yml:2: YAML tags are not accepted"),
        ("a: 1\n--- \nb: 2", "a.yml:2: A second document begins here; remove it"),
        ("1: a", "a.yml:1: A key has to be text; put it in quotes."),
        ("\x07", "a.yml:1: This is not YAML: unacceptable character"),
        ("[" * 3000 + "]" * 3000, "a.yml:1: This is nested too deeply"),
    ],
)
def test_an_ambiguous_text_is_refused_by_line(text: str, problem: str) -> None:
    assert refusal(text).startswith(problem)


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("a:\n\tb: 2", 2, "indent with blanks, not with tabs."),
        ("a: {b: #c, d: 1}\ne:\n  f: 1", 2, "expected ','"),
        ("a: [", 1, "expected the node content"),
        ("a: @ana", 1, "put what begins with it in quotes."),
        ("a: this: that", 1, "put text with ': ' in it in quotes."),
        ("a: 'b", 1, "close the quotes."),
        ("a:\n  b: 1\n c: 2", 3, "expected <block end>"),
    ],
)
def test_a_text_without_yaml_is_refused(text: str, line: int, advice: str) -> None:
    found = refusal(text)

    assert found.startswith(f"a.yml:{line}: This is not YAML: ")
    assert advice in found
