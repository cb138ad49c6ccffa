"""A rule reads a closed set of names, returns a value or an error, and ends in time."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.cel_tokens import chains, tokens
from keyturn.gateway.policy.evaluate import Evaluation, Facts, evaluate
from keyturn.gateway.policy.expressions import (
    MAX_SOURCE,
    Answer,
    BadExpression,
    ask,
    compiled,
    scope,
)
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.load import load_policy, load_with_lines
from keyturn.gateway.policy.untyped import untyped_arguments
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.levels import examples

NOW = 1_782_900_000_000  # 2026-07-01 10:00 UTC, a Wednesday
VALUES: dict[str, object] = {
    "call": {"tool": "refund", "agent": "support"},
    "windows": {"sum": 100.0},
    "now": utc(NOW),
    "requester": "U0ANA",
    "recent": {"requests_10m": 3, "failures_1h": 0, "rejections_in_row": 1},
}


def answer(source: str, **args: JsonValue) -> Answer:
    return ask(compiled(source), scope(args, VALUES))


@pytest.mark.parametrize(
    "source",
    [
        "args.amount > 500",
        "args.amount == 501 && args.amount == 501.0",
        "args.lines[0].sku == 'A'",
        "args.lines.exists(line, line.count > 2)",
        "args.lines.all(line, line.count > 0) && size(args.lines) == 1",
        "has(args.amount) && !has(args.note)",
        "args.name.startsWith('Bo') && args.name.contains('b')",
        "args.name.matches(r'^B\\w+$')",
        "args.name in ['Ana', 'Bob',]",
        "!(args.name in [])",
        "now == timestamp('2026-07-01T10:00:00Z')",
        "call.tool == 'refund' && call.agent == 'support'",
        "recent.requests_10m == 3 && recent.rejections_in_row < 2",
        "now > timestamp('2026-01-01T00:00:00Z') && now.getFullYear() == 2026",
        "hour(now, 'Europe/London') == 11 && weekday(now, 'UTC') == 3",
        "!off_hours(now, 'Europe/London', '08:00-18:00')",
        "off_hours(timestamp(args.day), 'UTC', '08:00-18:00')",
        "args.amount > 900 ? false : true // a comment with 'quotes'",
    ],
)
def test_a_rule_reads_what_it_may(source: str) -> None:
    assert answer(
        source,
        amount=501,
        lines=[{"sku": "A", "count": 3}],
        name="Bob",
        nothing=None,
        day="2026-07-04T10:00:00Z",
    ) == Answer(holds=True)


@pytest.mark.parametrize(
    ("source", "args", "problem"),
    [
        ("args.amount > 500", {}, "args.amount is missing"),
        ("args.card.number == ''", {"card": 5}, "a value has another type"),
        ("args.amount > 500", {"amount": "900"}, "a value has another type"),
        ("args.flag", {"flag": "yes"}, "it is neither true nor false"),
        ("1 / 0 == 1", {}, "it failed on these values"),
        ("timestamp(args.day) < now", {"day": "soon"}, "it failed on these values"),
        ("args[args.key] == 1", {"key": "<!channel>"}, "a value that it reads is"),
    ],
)
def test_errors_quote_no_argument(source: str, args: JsonObject, problem: str) -> None:
    found = answer(source, **args)

    assert not found.holds
    assert found.problem.startswith(problem)
    assert "channel" not in found.problem


@given(
    st.dictionaries(
        st.sampled_from(["call", "windows", "now", "requester", "recent", "args"])
        | st.text(max_size=4),
        st.integers() | st.just({"tool": "read_doc", "sum": 0}) | st.just("U0BOSS"),
    )
)
def test_no_argument_stands_in_for_a_name_of_ours(given_args: dict[str, Any]) -> None:
    known = scope(
        {k: v for k, v in given_args.items() if not isinstance(v, int)}, VALUES
    )

    for source in (
        "call.tool == 'refund'",
        "windows.sum == 100",
        "requester == 'U0ANA'",
        "recent.requests_10m == 3",
        "now.getFullYear() == 2026",
    ):
        assert ask(compiled(source), known) == Answer(holds=True)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("args.amount >", "'<EOF>'); write a comparison such as args.amount > 500"),
        ("", "'' is no CEL"),
        ("args.a > 5 and args.b", "write && for and, || for or, ! for not"),
        ("args.a = 5", "write == to compare"),
        ("now.getHours('Mars/Base') > 1", "getHours() takes no time zone and returns"),
        ("weekday(now, 'UTC') == 0", "weekday is 1 (Monday) to 7, so it is never == 0"),
        ("arg.amount > 1", "there is no 'arg'; did you mean 'args'?"),
        ("call.tol == 'x'", "'call' has no 'tol'; did you mean 'tool'?"),
        ("call == {}", "'call' is read by name; write call.agent"),
        ("windows[args.x] > 1", "'windows' is read by name; write windows.<name>"),
        ("sizee(args) > 1", "there is no function 'sizee'; did you mean 'size'?"),
        ("args.l.map(x, x) == []", "there is no method 'map'"),
        ("now.hour('UTC') == 1", "write hour(now, …), not now.hour(…)"),
        ("hour(now) == 1", "write hour(now, 'Europe/London')"),
        ("hour(now, 'x') == 1", "there is no time zone 'x'; write an IANA name"),
        (r"hour(now, '\x55TC') == 1", "the time zone of 'hour' has to be written out"),
        ("hour(now, 'Europe/Londn') == 1", "no time zone 'Europe/Londn'; did you mea"),
        ("hour(now, args.zone) == 1", "the time zone of 'hour' has to be written out"),
        ("off_hours(now, 'UTC', '8-18')", "'8-18' are not hours; write '08:00-18:00'"),
        ("args.a.matches('(')", "'(' is not a regular expression"),
        (r"args.a.matches('(?i)\bdelete\b')", r"written out, as in r'^\s*\d+'"),
        (r"args.a.matches('^\s*delete')", "with backslashes as r'…'"),
        ("args.a.matches(args.b)", "the pattern of 'matches' has to be written out"),
        ("args.l.exists(args, args > 1)", "'args' is taken; give the macro's var"),
        ("Foo{a: 1} == 1", "there is no type 'Foo' to make"),
        ("'" + "x" * MAX_SOURCE + "' == ''", "1000 is the limit"),
        ("(" * 25 + "true" + ")" * 25, "its brackets are nested more than 24 deep"),
        ("args.l.exists(a, " * 24 + "true" + ")" * 24, "it could take too long; put"),
        (
            f"[{', '.join(map(str, range(80)))}].all(a, [1].all(b, a != b))",
            "it could take too long; put at most 2 macros inside another",
        ),
    ],
)
def test_a_senseless_rule_is_refused_with_advice(source: str, problem: str) -> None:
    with pytest.raises(BadExpression) as caught:
        compiled(source)

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("args.l.all(x, x in args.l)", {"l": list(range(400))}),
        ("!args.s.matches('(a|a)*b')", {"s": "a" * 60_000}),
    ],
)
def test_a_large_call_is_checked_in_little_time(source: str, args: JsonObject) -> None:
    started = time.thread_time()

    assert answer(source, **args).holds

    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("args.l.all(x, x in args.l)", 600),
        ("args.l.all(x, args.l.all(y, x == y))", 70),
        ("size(" + " + ".join(["args.l"] * 90) + ") > 0", 20_000),
    ],
)
def test_a_call_that_would_take_long_is_not_tried(source: str, size: int) -> None:
    started = time.thread_time()

    numbers: list[JsonValue] = [0] * size
    found = answer(source, l=numbers)

    assert found.problem == "the call is too large for it"
    assert time.thread_time() - started < 1


_WORDS = [
    *("args", ".a", ".b", "[0]", "['a']", "x", "y", "now", "windows.sum", "requester"),
    *("has(args.a)", "size(", ".exists(x,", ".filter(y,", "hour(now,'UTC')", "r'\\'"),
    *("==", "!=", "&&", "||", "in", "1", "2.5", "3u", "'t'", "null", "true"),
    *"()+*/%!-<>?:,[]{}",
]
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(
    st.lists(st.sampled_from(_WORDS), max_size=40).map(" ".join) | st.text(max_size=60),
    st.dictionaries(st.sampled_from(["a", "b"]), _VALUE, max_size=2),
)
def test_any_text_is_refused_or_answers_any_call(source: str, args: JsonObject) -> None:
    try:
        expression = compiled(source)
    except BadExpression as error:
        problem = str(error)
    else:
        problem = ""
        ask(expression, scope(args, VALUES))
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("args.a.b > args['c'].d", [("a", "b"), ("c", "d")]),
        ("args.name.size() > 1 && args.l[0].x == 1", [("name",), ("l", "0", "x")]),
        ("args.l.exists(args2, args2.z > 1)", [("l",)]),
        ("call.args.no == 1", []),
        ("args[args.k] == 1", [(), ("k",)]),
        ("['a'].exists(k, args[k] == 1)", [()]),
        ("args.a[1 + 1] == r'\\' + '''args.no''' ", [("a",)]),
    ],
)
def test_the_paths_of_a_rule_show(source: str, paths: list[tuple[str, ...]]) -> None:
    assert [path for _, path in chains(tokens(source), "args")] == paths


# A rule that compares values of different types is not passed over: it raises.


MIXED = "mixed"
SPELLINGS = {
    "args.a == args.b": True,
    "args.b == args.a": True,
    "args.a != args.b": False,
    "!(args.a != args.b)": True,
    "(args.a) == (args.b)": True,
    "args['a'] == args['b']": True,
    "[args.a] == [args.b]": True,
    "{'k': args.a} == {'k': args.b}": True,
    "args.a in [args.b]": True,
    "!(args.b in [args.a])": False,
    "[args.a].exists(one, one == args.b)": True,
    "[args.a].all(one, one != args.b)": False,
    "[args.a].exists_one(one, one in [args.b])": True,
    "size([args.a].filter(one, one == args.b)) == 1": True,
    "args.a == args.b ? true : false": True,
    "has(args.a) && args.a == args.b": True,
    "has(args.nothing) || args.a != args.b": False,
    "(args.a == args.b) == true": True,
}
"""What compares two arguments, and what it says of equal ones."""

LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, 1, 3, 3.0, 1.5, "", "3", "a", "true"])
)
COMPARED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    ),
    max_leaves=4,
)


def kind(value: JsonValue) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def reference(left: JsonValue, right: JsonValue) -> bool | str:
    """Compare by type, written without a look at the code: True, False or MIXED."""
    if kind(left) != kind(right):
        return MIXED
    if isinstance(left, list) and isinstance(right, list):
        pairs = [*zip(left, right, strict=False)]
        same_shape = len(left) == len(right)
    elif isinstance(left, dict) and isinstance(right, dict):
        pairs = [(left[name], right[name]) for name in left.keys() & right.keys()]
        same_shape = left.keys() == right.keys()
    else:
        return left == right
    if not same_shape:
        return False
    found = [reference(*pair) for pair in pairs]
    return MIXED if MIXED in found else all(found)


def asked(source: str, args: JsonObject) -> Answer:
    return ask(compiled(source), scope(args, {}))


@settings(max_examples=examples(400), deadline=None)
@given(COMPARED, COMPARED, st.sampled_from(sorted(SPELLINGS)))
def test_every_spelling_compares_by_type(
    left: JsonValue, right: JsonValue, source: str
) -> None:
    answer, expected = asked(source, {"a": left, "b": right}), reference(left, right)

    if expected == MIXED:
        assert answer.problem.startswith("it compares ")
    else:
        assert answer == Answer(holds=(expected is True) is SPELLINGS[source])


@settings(max_examples=examples(200), deadline=None)
@given(COMPARED, COMPARED)
def test_a_literal_compares_as_an_argument(left: JsonValue, right: JsonValue) -> None:
    written = json.dumps(right)
    if right is None:
        return  # a null that is written out asks whether there is a value

    found = [
        asked(f"args.a == {written}", {"a": left}),
        asked(f"{written} == args.a", {"a": left}),
    ]

    expected = asked("args.a == args.b", {"a": left, "b": right})
    for one in found:
        assert (one.holds, not one.problem) == (expected.holds, not expected.problem)


@settings(max_examples=examples(200), deadline=None)
@given(LEAVES, st.lists(LEAVES, max_size=4))
def test_a_list_has_a_value_or_not(value: JsonValue, values: list[JsonValue]) -> None:
    answer = asked("args.a in args.b", {"a": value, "b": values})

    found = [reference(value, one) for one in values]
    if True in found:
        assert answer.holds
    elif MIXED in found:
        assert answer.problem.startswith("it compares ")
    else:
        assert answer == Answer(holds=False)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("args.level == 3", "3"),
        ("args.level in [1, 2, 3]", "3"),
        ("args.level == 'IR'", None),
        ("'a' in args.level", "abc"),
        ("args.level == [3, 1, '2']", [1, 2, 3]),
        ("args.level == {'x': 3, 'y': '2'}", {"x": 1, "y": 2}),
        ("args.level > 2", "3"),
    ],
)
def test_what_no_rule_can_tell_is_for_two_people(source: str, value: JsonValue) -> None:
    evaluation = evaluated(source, {"level": value})

    assert evaluation.tier is Tier.ESCALATE
    (rule,) = evaluation.fired
    assert rule.problem
    assert "could not be checked, because" in rule.reason


def test_the_reason_names_the_types_and_nothing_of_the_call() -> None:
    evaluation = evaluated("args.level == 3", {"level": "<!channel>"})

    assert evaluation.fired[0].reason == (
        "Raised to escalate: the rule 'embargo' could not be checked, because it "
        "compares a number with a text."
    )


def evaluated(source: str, args: JsonObject) -> Evaluation:
    rule = {"to": "deny", "when": source, "because": "embargo"}
    tools = {"ship": {"tier": "auto", "raise": [rule]}}
    policy = load_policy(json.dumps({"version": 1, "tools": tools}), "p.yml")
    return evaluate(policy, agent="a", tool="ship", args=args, facts=Facts(now_ms=1))


@pytest.mark.parametrize(
    ("value", "is_null"), [(None, True), ("a", False), (0, False), ([], False)]
)
def test_a_rule_may_test_for_a_value(value: JsonValue, *, is_null: bool) -> None:
    args: JsonObject = {"a": value}

    assert asked("args.a == null", args) == Answer(holds=is_null)
    assert asked("null == args.a", args) == Answer(holds=is_null)
    assert asked("args.a != null", args) == Answer(holds=not is_null)
    assert asked("args.a in [null]", args).holds is is_null
    assert asked("args.a != null && args.a == 'x'", {"a": None}) == Answer()


def test_a_null_in_a_list_stands_for_no_value() -> None:
    found = [asked("args.a in ['x', null, 'y']", {"a": a}) for a in (None, "y", "z")]

    assert found == [Answer(holds=True), Answer(holds=True), Answer()]
    assert asked("args.a in ['x', null]", {"a": 3}).problem


def test_what_does_not_matter_raises_nothing() -> None:
    """CEL's && and || know their answer when one side is enough."""
    args: JsonObject = {"level": "3", "amount": 1}

    assert asked("args.level == 3 && args.amount > 5", args) == Answer()
    assert asked("args.amount > 5 && args.level == 3", args) == Answer()
    assert asked("args.level == 3 || args.amount < 5", args) == Answer(holds=True)
    assert asked("args.level == 3 || args.amount > 5", args).problem
    assert asked("args == {'level': 3}", args) == Answer()


def test_an_earlier_mismatch_is_not_blamed_for_a_later_problem() -> None:
    where = scope({"level": "3", "amount": 1}, {})
    ask(compiled("args.level == 3"), where)

    answer = ask(compiled("args.missing > 3"), where)

    assert answer.problem == "args.missing is missing"


MIXING = [
    ("number", "'500'"),
    ("string", "500"),
    ("boolean", "'true'"),
    ("array", "'a'"),
]
NEVER = [
    "args.a == timestamp('2026-07-04T02:30:00Z')",
    "now == '2026-07-04'",
    "'a' == 3",
]


@pytest.mark.parametrize(
    ("kind_", "when"),
    [
        *((None, when) for when in NEVER),
        *((kind_, f"args.a == {literal}") for kind_, literal in MIXING),
        ("number", "'500' != args.a"),
        ("number", "args.a in ['500']"),
    ],
)
def test_a_rule_that_only_mixes_types_fails(kind_: str | None, when: str) -> None:
    rules = {"raise": [{"to": "deny", "when": when, "because": "b"}]}
    typed = {"args_schema": {"properties": {"a": {"type": kind_}}}} if kind_ else {}
    text = json.dumps({"version": 1, "tools": {"t": rules | typed}})

    with pytest.raises(PolicyError, match="mixes types that CEL does not mix"):
        load_policy(text, "p.yml")


def test_a_chain_of_comparisons_is_bounded() -> None:
    compiled(" == ".join(["args.a"] * 10))

    with pytest.raises(BadExpression, match="nested more than 24 deep"):
        compiled(" == ".join(["args.a"] * 60))


def test_the_library_logs_no_comparison(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert asked("args.a == 3", {"a": "secret"}).problem

    assert not caplog.records


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_whatever_compiles_keeps_its_meaning(data: st.DataObject) -> None:
    """Comparisons inside other operators keep CEL's precedence."""
    numbers = ["args.a", "args.b", "1.0", "2.5", "(args.a + 1.0)", "-args.b"]
    relations = ["==", "!=", "<", ">", "<=", ">="]
    draw = data.draw
    clause = st.tuples(
        st.sampled_from(["", "!"]),
        st.sampled_from(numbers),
        st.sampled_from(relations),
        st.sampled_from(numbers),
        st.sampled_from([" && ", " || "]),
    )
    rows = draw(st.lists(clause, min_size=1, max_size=4))
    parts: list[str] = []
    for sign, left, relation, right, joint in rows:
        text = f"{left} {relation} {right}"
        parts += [f"!({text})" if sign else text, joint]
    source = "".join(parts[:-1])
    args = {"a": draw(st.sampled_from([1.0, 2.5])), "b": draw(st.just(2.0))}

    answer = asked(source, cast("JsonObject", args))

    python = source.replace("&&", " and ").replace("||", " or ")
    python = python.replace("!(", " not (")
    for name, value in args.items():
        python = python.replace(f"args.{name}", str(value))
    assert answer == Answer(holds=bool(eval(python)))  # noqa: S307 - an expression of ours


ROOT = Path(__file__).parents[2]
_YAML = re.compile(
    r"^```yaml(?: (?P<file>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

RULE = "raise: [{to: deny, when: args.level == 3, because: x}]"
WINDOW = """\
version: 1
windows:
  paid:
    tools: [pay, refund]
    by: args.customer
    sum: args.amount
    within: 1h
tools:
  pay: {args_schema: {properties: {customer: {type: string}, amount: {type: number}}}}
  refund: {SCHEMA}
"""


def warnings(text: str) -> list[str]:
    """Return the warnings about a policy that can be used."""
    return [str(one) for one in untyped_arguments(*load_with_lines(text, "p.yml"))]


def of_schema(schema: str) -> list[str]:
    """Return the warnings about one rule, by the schema of its tool."""
    listed = f"args_schema: {schema}, " if schema else ""
    return warnings(f"version: 1\ntools: {{close: {{{listed}{RULE}}}}}")


def test_a_rule_on_an_argument_without_a_type_names_line_and_remedy() -> None:
    [warning] = of_schema("")

    assert warning == (
        "p.yml:2: 'tools.close.raise[0].when': args.level has no declared type: "
        "declare it in args_schema of 'close', or a value of another type escalates "
        "the call."
    )


@pytest.mark.parametrize(
    "schema",
    [
        "{properties: {level: {}}}",
        "{type: object, additionalProperties: true, properties: {a: {type: number}}}",
    ],
)
def test_a_schema_that_does_not_declare_the_type_is_named(schema: str) -> None:
    [warning] = of_schema(schema)

    assert "declare it in args_schema of 'close', or" in warning


@pytest.mark.parametrize(
    "schema",
    [
        "{properties: {level: {type: number}}}",
        "{properties: {level: {type: [integer, 'null']}}}",
        "{properties: {level: {anyOf: [{type: integer}, {type: string}]}}}",
        "{properties: {level: {enum: [1, 3]}}}",
        "{properties: {level: {$ref: '#/$defs/n'}}, $defs: {n: {type: number}}}",
    ],
)
def test_a_declared_type_is_not_pointed_out(schema: str) -> None:
    assert of_schema(schema) == []


def test_a_window_is_pointed_out_for_each_of_its_tools_without_types() -> None:
    [total] = warnings(WINDOW.replace("SCHEMA", "tier: approve"))

    assert total == (
        "p.yml:6: 'windows.paid.sum': args.amount has no declared type: declare it in "
        "args_schema of 'refund', or a value of another type escalates the call."
    )


def test_a_rule_for_one_agent_is_evaluated_by_the_schema_it_has_there() -> None:
    typed = "args_schema: {properties: {level: {type: number}}}"
    rule = f"version: 1\nagents: {{night: {{tools: {{close: {{{RULE}}}}}}}}}\n"
    own = rule.replace("{close: {", f"{{close: {{{typed}, ")

    [warning] = warnings(rule)
    assert "'agents.night.tools.close.raise[0].when': args.level" in warning
    assert warnings(f"{rule}tools: {{close: {{{typed}}}}}") == []
    assert warnings(f"{own}tools: {{close: {{}}}}") == []


def test_a_listed_rule_is_evaluated_by_the_schema_of_every_agent() -> None:
    listed = (
        f"close: {{args_schema: {{properties: {{level: {{type: number}}}}}}, {RULE}}}"
    )
    own = "close: {args_schema: {properties: {level: {}}}}"

    [warning] = warnings(
        f"version: 1\nagents: {{night: {{tools: {{{own}}}}}}}\ntools: {{{listed}}}"
    )
    assert warning.startswith("p.yml:3: 'tools.close.raise[0].when': args.level")


def test_one_argument_is_pointed_out_once_for_each_rule() -> None:
    rule = "{to: deny, when: args.a > 3 && args.a < 9 || args.b == 'x', because: x}"

    found = warnings(f"version: 1\ntools: {{a: {{raise: [{rule}, {rule}]}}}}")

    assert [re.findall(r"raise\[.\]|args\.\w", one) for one in found] == [
        ["raise[0]", "args.a"],
        ["raise[0]", "args.b"],
        ["raise[1]", "args.a"],
        ["raise[1]", "args.b"],
    ]


@pytest.mark.parametrize("file", ["keyturn.yml", "policy.example.yml", "examples/"])
def test_the_policies_that_ship_declare_what_they_read(file: str) -> None:
    paths = [*(ROOT / file).glob("*.yml")] or [ROOT / file]

    for path in paths:
        under = "policy" if path.name == "keyturn.yml" else ""
        loaded = load_with_lines(path.read_text("utf-8"), path.name, under=under)
        assert untyped_arguments(*loaded) == []


@pytest.mark.parametrize("page", ["policy", "migrating", "triage"])
def test_the_policies_of_the_docs_declare_what_they_read(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    shown = [one for one in _YAML.finditer(text) if one["text"].startswith("version")]
    good = [one for one in shown if "wrong" not in (one["file"] or "")]

    assert good
    for block in good:
        if block["file"] != "untyped.yml":
            assert warnings(block["text"]) == []
