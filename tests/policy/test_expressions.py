"""A rule reads a closed set of names, returns a value or an error, and ends in time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.policy.cel_tokens import chains, tokens
from keyturn.gateway.policy.expressions import (
    MAX_SOURCE,
    Answer,
    BadExpression,
    ask,
    compiled,
    scope,
)
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.protocol.strict_json import JsonObject

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
