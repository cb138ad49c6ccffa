"""Any file is a policy, or its mistake is reported with a line, in short time."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.config import PolicySource
from keyturn.gateway.documents import MAX_TEXT, parse_yaml
from keyturn.gateway.errors import PolicyError, SettingsError
from keyturn.gateway.policy.expressions import MAX_NESTING, BadExpression, compiled
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.rules import Policy
from tests.levels import examples

EXAMPLE = (Path(__file__).parents[2] / "policy.example.yml").read_text("utf-8")
TREE = parse_yaml(EXAMPLE, "policy.example.yml").value
PLACE = re.compile(r"(?P<file>.*policy\.yml):(?P<line>[0-9]+): ", re.DOTALL)
SOON_S = 10.0
SLOW = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
]

JUNK: list[Any] = [
    *(None, True, -1, 0, 10**30, 1e308, "", " ", "\u202e", "x" * 500, "²"),
    *("auto", "2026-02-30", "12:30", "U0ANA", "S0X", "#c", "1h", "101%", "Mars/Base"),
    *("args.", "{args.a}", "{", "1 +", "'" * 50, "(" * 200, "windows.nothing > 1"),
    *([], {}, [[]], {"a": {"b": {"c": []}}}, ["auto", "auto"], {"": ""}),
    *({"type": "nmbr"}, {"$ref": "#"}, {"$ref": "#/x"}, {"pattern": "a{9999999999}"}),
    *({"$id": "http://[", "$ref": "y"}, {"properties": {"amount": {"type": "null"}}}),
]
KEYS = ["tier", "teir", "tools", "raise", "users", "<<", "version", "°", "1", "", "=="]
Change = Callable[[bytes], bytes]


def places(
    node: JsonValue, path: tuple[str | int, ...] = ()
) -> list[tuple[str | int, ...]]:
    """Return the path of every value."""
    found = [path]
    if isinstance(node, dict):
        for name, member in node.items():
            found += places(member, (*path, name))
    if isinstance(node, list):
        for index, element in enumerate(node):
            found += places(element, (*path, index))
    return found


PLACES = places(TREE)[1:]


@st.composite
def trees(draw: st.DrawFn) -> str:
    """Return the example with values lost, renamed, doubled or of another type."""
    tree = cast("JsonValue", json.loads(json.dumps(TREE)))
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        _mutate(tree, path, draw)
    if draw(st.booleans()):
        return json.dumps(tree, indent=draw(st.sampled_from([None, 2])))
    return yaml.safe_dump(tree, sort_keys=draw(st.booleans()), allow_unicode=True)


def _mutate(node: JsonValue, path: tuple[str | int, ...], draw: st.DrawFn) -> None:
    for token in path[:-1]:
        inner = node.get(str(token)) if isinstance(node, dict) else None
        if isinstance(node, list) and isinstance(token, int) and token < len(node):
            inner = node[token]
        node = inner
    last, junk = path[-1], draw(st.sampled_from(JUNK))
    if isinstance(node, list) and isinstance(last, int) and last < len(node):
        node[last] = junk
    if isinstance(node, dict) and last in node:
        match draw(st.sampled_from(["drop", "rename", "replace"])):
            case "drop":
                del node[str(last)]
            case "rename":
                node[draw(st.sampled_from(KEYS))] = node.pop(str(last))
            case _:
                node[str(last)] = junk


def insert(what: bytes) -> st.SearchStrategy[Change]:
    """Insert something anywhere."""

    def at(share: float) -> Change:
        return lambda text: _inserted(text, int(share * len(text)), what)

    return st.floats(0, 1).map(at)


def _inserted(text: bytes, at: int, what: bytes) -> bytes:
    return text[:at] + what + text[at:]


def cut(share: float) -> Change:
    """Keep only the first part, as a crash in the middle of writing would."""
    return lambda text: text[: int(share * len(text))]


PIECES_OF_FILES = [
    *(b"\t", b"\r", b"\n---\n", b"\x00", b"\x85", b"\xff\xfe", b"\xed\xa0\x80"),
    *("\u2028".encode(), b"\xef\xbb\xbf", b"&a ", b"*a", b"!!python/name:os "),
    *(b"? ", b"<<: *a\n", b"%YAML 9.9\n", b"{" * 70, b"[" * 5000, b"- " * 90),
    *(b".nan", b"9" * 4000, b"'", b'"\\ud800"', b": ", b"|\n", b"#", b"@"),
]


def replaced(old: bytes, new: bytes) -> Change:
    """Replace something everywhere."""
    return lambda text: text.replace(old, new)


WHOLE: list[Change] = [
    replaced(b"\n", b"\r\n"),
    replaced(b"\n", b"\r"),
    replaced(b"  ", b"\t"),
    lambda text: b"\xef\xbb\xbf" + text,
    lambda text: text.decode("utf-8", "replace").encode("utf-16"),
    lambda text: text + text,
]
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.sampled_from(PIECES_OF_FILES).flatmap(insert),
    st.floats(0, 1).map(cut),
    st.sampled_from(WHOLE),
)


def opened(found: bytes) -> Policy | str:
    """Return the policy of a file, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yml")
        path.write_bytes(found)
        try:
            return load_policy(PolicySource(path=path).read(), str(path))
        except (PolicyError, SettingsError) as error:
            return str(error)


def assert_usable_or_placed(found: bytes) -> None:
    started = time.monotonic()
    answer = opened(found)

    assert time.monotonic() - started < SOON_S
    if isinstance(answer, Policy):
        assert answer.digest.startswith("sha256:")
        return
    place = PLACE.match(answer)
    assert place, answer
    # YAML also breaks lines at these characters of Unicode.
    lines = re.split(rb"\r\n?|\n|\xc2\x85|\xe2\x80[\xa8\xa9]", found)
    assert 1 <= int(place["line"]) <= len(lines)
    assert len(answer) < 2000


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(trees())
def test_any_tree_is_a_policy_or_its_mistake_has_a_line(text: str) -> None:
    assert_usable_or_placed(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(st.just(EXAMPLE) | trees(), st.lists(CHANGES, min_size=1, max_size=3))
def test_any_bytes_load_or_have_a_mistake(text: str, changes: list[Change]) -> None:
    found = text.encode("utf-8", "surrogatepass")
    for change in changes:
        found = change(found)

    assert_usable_or_placed(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (b"version: 1\n" + b"x" * MAX_TEXT, ":1: This has 1000011 characters"),
        (b" " * 5_000_000, ":1: This is longer than 4000000 bytes."),
        (b"version: 1\n# \xe9t\xe9\n", ":2: This is not UTF-8; save it as UTF-8."),
        (b"a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]\n", ":1: Anchors and aliases"),
        (b"\xef\xbb\xbfversion: 1\ntols: 1\n", ":2: Unknown key 'tols'"),
        (b"version: 1\ntools:\n  a: {tier: 2026-01-01}\n", ":3: 'tools.a.tier' is '20"),
        (b"version: 1\n\x07\n", ":2: This is not YAML: unacceptable character"),
    ],
)
def test_a_hidden_mistake_is_named_with_its_line(found: bytes, said: str) -> None:
    answer = opened(found)

    assert isinstance(answer, str)
    assert f"policy.yml{said}" in answer


def test_a_byte_order_mark_and_foreign_ends_of_lines_change_no_policy() -> None:
    plain = opened(EXAMPLE.encode())
    foreign = opened(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())

    assert isinstance(plain, Policy)
    assert isinstance(foreign, Policy)
    assert plain.digest == foreign.digest


def test_mistakes_come_in_the_order_of_their_lines() -> None:
    text = "tols: 1\ntools: {a: {tier: x}}\ndefaults: {teir: auto}\nversion: 1\n"

    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "p")

    assert [one.location for one in caught.value.problems] == ["p:1", "p:2", "p:3"]


@pytest.mark.slow
def test_so_many_mistakes_that_nobody_reads_them_are_not_all_named() -> None:
    tools = {f"t{index}": {"teir": "auto"} for index in range(5000)}

    answer = opened(json.dumps({"version": 1, "tools": tools}).encode())

    assert isinstance(answer, str)
    assert "(99 more; run 'keyturn policy check FILE')" in answer


def test_a_schema_that_refers_to_itself_makes_no_samples_without_end() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    node = {"type": "object", "properties": {c: {"$ref": "#/$defs/n"} for c in names}}
    schema = {"type": "object", "properties": {"x": node}, "$defs": {"n": node}}
    rule = {"to": "deny", "when": "size(args.x) > 3", "because": "many"}
    policy = {"version": 1, "tools": {"t": {"args_schema": schema, "raise": [rule]}}}

    assert_usable_or_placed(json.dumps(policy).encode())


def test_the_deepest_expression_fits_in_a_small_stack() -> None:
    """The library ends the process when it does not: this test would not fail."""
    deepest = MAX_NESTING - 1
    kinds = ("()", "[]", "{1:}", "size()", "-()")
    sources = [f"({kind[:-1] * deepest}1{kind[-1] * deepest} == 1.0)" for kind in kinds]
    done: list[str] = []

    def work() -> None:
        for source in sources:
            try:
                done.append(compiled(source).source)
            except BadExpression as error:
                done.append(str(error))

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()

    assert len(done) == len(sources)
