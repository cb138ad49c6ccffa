"""Schemas and arguments from an attacker cause little work, in any shape."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from keyturn.bot.modals.form import build_form
from keyturn.gateway.policy import evaluate as evaluating
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.schemas import unusable
from keyturn.gateway.policy.windows import window_key
from keyturn.gateway.protocol.edits import argument_errors, edit_errors
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.protocol.work import QUICK_STEPS, aside, one_budget, spend
from keyturn.gateway.store.store import Store
from tests.bot.samples import an_item
from tests.service.harness import ServiceHarness

LIMIT_S = 1.0
"""Far more than any of it takes, on a busy machine and with the collector's work."""

POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, needs: [U0ANA]}
tools: {}
""",
    "policy.yml",
)


def of(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema}}


def each(schema: Any) -> Any:
    return of({"type": "array", "items": schema})


def doubling(keyword: str, last: Any, levels: int = 30) -> Any:
    """Return a schema whose every level has the next one twice."""
    below = [{"$ref": f"#/$defs/d{level + 1}"} for level in range(levels)]
    defs: Any = {f"d{level}": {keyword: [one] * 2} for level, one in enumerate(below)}
    return {**of({"$ref": "#/$defs/d0"}), "$defs": {**defs, f"d{levels}": last}}


def dependent(levels: int = 30) -> Any:
    named = [{"$ref": f"#/$defs/d{level + 1}"} for level in range(levels)]
    defs: Any = {
        f"d{level}": {"dependentSchemas": {"a": one, "b": one}}
        for level, one in enumerate(named)
    }
    whole = {"unevaluatedProperties": False, "$ref": "#/$defs/d0"}
    return {**whole, "$defs": {**defs, f"d{levels}": {}}}


CONSTANTS = {"anyOf": [{"const": -number} for number in range(1, 601)]}
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TREE = {"anyOf": [{"properties": {"of": {"$ref": "#/$defs/t"}}}] * 3}
KIND = [{"properties": {"t": {"const": f"e{kind}"}}} for kind in range(12)]
NAMES = {f"k{number}": 1 for number in range(6_000)}
NESTED = json.loads('{"of":' * 40 + "1" + "}" * 40)

COSTLY: dict[str, tuple[Any, Any]] = {
    "many constants": (each(CONSTANTS), list(range(400))),
    "constants in contains": (of({"contains": CONSTANTS}), list(range(400))),
    "optional texts": (each(OPTIONAL), [""] * 21_000),
    "integers": (each({"type": "integer"}), [1] * 32_000),
    "anything": (each({}), [1] * 32_000),
    "a long menu": (each({"enum": [f"C{n}" for n in range(150)]}), ["x"] * 16_000),
    "a union": (each({"anyOf": KIND}), [{"t": "z"}] * 6_500),
    "names": (of({"propertyNames": {"minLength": 1}}), NAMES),
    "patterns of names": (
        of({"patternProperties": {f"^a{n}": True for n in range(300)}}),
        NAMES,
    ),
    "required names": (each({"required": [*NAMES][:1_000]}), [{}] * 20_000),
    "declared names": (
        each({"properties": {name: {} for name in NAMES}}),
        [{}] * 20_000,
    ),
    "branches of all": (doubling("allOf", {}), 1),
    "branches of any": (doubling("anyOf", {"type": "string"}), 1),
    "branches of one": (doubling("oneOf", {}), 1),
    "branches that depend": (dependent(), 1),
    "a tree": ({**of({"$ref": "#/$defs/t"}), "$defs": {"t": TREE}}, NESTED),
    "what is not evaluated": (
        of({"allOf": [{"additionalProperties": True}], "unevaluatedProperties": False}),
        NAMES,
    ),
    "errors with long texts": (of({"anyOf": [{"type": "string"}] * 600}), [1] * 30_000),
    "long values": (of({"enum": [[1] * 90 + [n] for n in range(900)]}), [1] * 90),
    "patterns": (
        {"properties": {f"p{n}": {"pattern": rf"\w{{90}}{n}"} for n in range(300)}},
        1,
    ),
    "a pattern on texts": (each({"pattern": "(.{70}){20}"}), ["é" * 15_000] * 2),
    "anchors": (
        {"properties": {f"p{n}": {"$ref": "#x"} for n in range(400)}}
        | {"$defs": {"x": {"$anchor": "x"}}},
        1,
    ),
    "parts": ({"properties": {name: {"type": "string"} for name in NAMES}}, 1),
}


@pytest.mark.parametrize("shape", COSTLY)
def test_what_exceeds_its_budget_is_escalated_and_not_edited(shape: str) -> None:
    schema, value = COSTLY[shape]
    args = {"a": value, "b": 1}

    began = time.thread_time()
    found = evaluate(POLICY, agent="a", tool="t", args=args, declared_schema=schema)
    evaluated = time.thread_time()
    edit_errors(schema, args, {**args, "b": 2})
    edited = time.thread_time()

    assert found.tier is Tier.ESCALATE
    assert Verb.EDIT not in found.allow
    assert found.reasons[-1] == (
        "Raised to escalate: The call takes too long to check against the agent's "
        "schema, so it cannot be edited."
    )
    assert evaluated - began < LIMIT_S
    assert edited - evaluated < LIMIT_S


def test_an_ordinary_call_is_checked_whole() -> None:
    line = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "count": {"minimum": 1}},
        "required": ["sku"],
    }
    schema: Any = {**each({"$ref": "#/$defs/line"}), "$defs": {"line": line}}
    args: Any = {"a": [{"sku": f"A{n}", "count": 2} for n in range(100)]}

    found = evaluate(POLICY, agent="a", tool="t", args=args, declared_schema=schema)

    assert found.tier is Tier.APPROVE
    assert Verb.EDIT in found.allow
    assert edit_errors(schema, args, {"a": [{"sku": 7}]}) == {
        "/a/0/sku": "This has to be a text."
    }


def test_a_policys_schema_has_the_same_budget() -> None:
    policy = load_policy(
        """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, needs: [U0ANA]}
tools:
  t: {args_schema: {type: object, properties: {a: {items: {type: integer}}}}}
""",
        "policy.yml",
    )

    args: Any = {"a": [1] * 32_000}
    found = evaluate(policy, agent="a", tool="t", args=args)

    assert (found.tier, Verb.EDIT in found.allow) == (Tier.ESCALATE, False)
    assert "against the policy's schema, so it cannot be edited." in found.reasons[-1]


def test_a_form_of_a_costly_schema_edits_nothing() -> None:
    part = {"properties": {f"x{n}": {"$ref": "#/$defs/p"} for n in range(600)}}
    schema: Any = {**of({"$ref": "#/$defs/p"}), "$defs": {"p": part}}
    value: Any = {f"x{n}": {f"x{m}": {"y": 1} for m in range(60)} for n in range(60)}
    item = an_item({"a": value, "b": 1}, args_schema=schema)

    began = time.thread_time()
    form = build_form(item)

    assert time.thread_time() - began < LIMIT_S
    assert not any(field.is_editable for field in form.fields)
    assert "the form is full" in str(form.blocks)


def test_a_key_of_a_window_is_not_looked_for_without_end() -> None:
    value: Any = {f"k{n}": "1" for n in range(8_000)}

    began = time.thread_time()
    window_key(value)

    assert time.thread_time() - began < LIMIT_S


async def test_only_long_work_leaves_the_event_loop() -> None:
    def work(steps: int) -> int:
        with one_budget():
            spend(steps)
        return threading.get_ident()

    here = threading.get_ident()
    assert await aside(lambda: work(QUICK_STEPS)) == here
    assert await aside(lambda: work(QUICK_STEPS + 1)) != here
    assert work(QUICK_STEPS + 1) == here


async def test_a_costly_call_is_evaluated_beside_the_event_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()

    def noted(*given: Any, **named: Any) -> str | None:
        threads.append(threading.get_ident())
        return unusable(*given, **named)

    monkeypatch.setattr(evaluating, "unusable", noted)
    schema, value = COSTLY["many constants"]
    call = ProposedCall(tool="t", args={"a": value}, tool_call_id="c0")
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    harness = ServiceHarness(store, POLICY)

    async with asyncio.timeout(30):
        turn = Turn(ref=ref, calls=(call,), schemas={"t": schema})
        [verdict] = await harness.agents.submit(turn)

    assert verdict.tier is Tier.ESCALATE
    assert threads[-1] != threading.get_ident()


ITSELF = {"$ref": "#/$defs/x"}
CYCLES: dict[str, Any] = {
    "reference": ITSELF,
    "not": {"not": ITSELF},
    "not not": {"not": {"not": ITSELF}},
    "all": {"allOf": [True, ITSELF]},
    "any": {"anyOf": [{"type": "null"}, ITSELF]},
    "one": {"oneOf": [ITSELF]},
    "if": {"if": ITSELF},
    "then": {"if": True, "then": ITSELF},
    "else": {"if": False, "else": ITSELF},
    "dependent": {"dependentSchemas": {"a": ITSELF}},
    "dynamic": {"$dynamicAnchor": "me", "not": {"$dynamicRef": "#me"}},
    "anchor": {"$anchor": "me", "allOf": [{"$ref": "#me"}]},
    "by another": {"allOf": [{"$ref": "#/$defs/y"}]},
}


@pytest.mark.parametrize("shape", CYCLES)
def test_a_schema_that_refers_to_itself_without_end_is_refused(shape: str) -> None:
    schema: Any = {"properties": {"a": ITSELF}, "$defs": {"x": CYCLES[shape]}}
    schema["$defs"]["y"] = {"not": ITSELF}

    assert unusable(schema, {"a": 1}) == "it refers to itself without end"


VALUES: list[Any] = [None, True, 0, 1, -1, 1.5, 2.0, "x", "string", [], ["x"], [{}], {}]
MORE_VALUES: list[Any] = [{"a": {}}, {"a": "x"}, {"a": ["x"]}, ["string", 1], [[]]]
KEYWORDS = [
    *Draft202012Validator.VALIDATORS,
    *("then", "else", "$defs", "minContains", "maxContains", "title", "description"),
    *("$anchor", "contentMediaType"),
]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_may_have_the_values_that_the_metaschema_allows(keyword: str) -> None:
    for value in [*VALUES, *MORE_VALUES]:
        schema: Any = {"properties": {"a": {keyword: value}}}
        try:
            Draft202012Validator.check_schema(schema)
            is_right = True
        except SchemaError:
            is_right = False

        found = unusable(schema, {"a": 1})

        # A reference may have any text, and has to lead somewhere as well.
        is_lost = "not in it" in str(found)
        assert is_right is (found is None or is_lost), (value, found)


# Arguments from an attacker delay no other agent's calls, under any policy.

SHORT_S = 2.0
"""Far more than any of_x it takes, far less than it takes without its limit."""


MATCHING = r"""
version: 1
defaults: {tier: auto, channel: C0APPROVALS, needs: [U0ANA]}
tools:
  mail:
    tier: auto
    raise:
      - to: approve
        when: args.to.exists(x, x.matches(r'^\w{200}$'))
        because: a long word
"""

WORDS = """
version: 1
defaults: {channel: C0APPROVALS, needs: [U0ANA]}
tools:
  mail: {tier: approve, redact: [args.bcc]}
"""


@contextmanager
def soon() -> Generator[None]:
    """Check that the block costs this process little."""
    before = time.process_time()
    yield
    assert time.process_time() - before < SHORT_S


def of_x(schema: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        of_x({"pattern": "^(a+)+$"}),
        {**of_x({"pattern": "^(a+)+$"}), "$schema": "http://json-schema.org/draft-07"},
        {"patternProperties": {"^(a+)+$": False}, "additionalProperties": True},
        {"patternProperties": {"^(a+)+$": False}, "additionalProperties": {}},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "properties": {"x": {"pattern": "^(a+)+$"}, "y": {"$ref": "#"}},
        },
    ],
)
def test_an_almost_matching_text_is_refused_at_once(schema: JsonObject) -> None:
    text = "a" * 27 + "!"

    with soon():
        argument_errors(schema, {"x": text, text: 1, "y": {"x": text}})


def test_a_list_is_looked_through_for_doubles_at_once() -> None:
    elements: JsonObject = {"x": [{"a": number} for number in range(4000)]}
    schema = of_x({"uniqueItems": True})

    with soon():
        assert argument_errors(schema, elements) == {}

    assert argument_errors(schema, {"x": [{"a": 1}, {"a": 1.0}]})
    assert argument_errors(schema, {"x": [1, True, "1", [1]]}) == {}


def test_a_pattern_in_a_rule_is_matched_with_many_texts_at_once() -> None:
    policy = load_policy(MATCHING, "policy.yml")

    def evaluated(*to: str | int) -> str:
        return evaluate(policy, agent="a", tool="mail", args={"to": list(to)}).tier

    with soon():
        assert evaluated(*["b"] * 400) == "auto"
    assert evaluated("é" * 200) == "approve"
    assert evaluated(7) == "escalate"


@pytest.mark.parametrize("says", ["4111 " * 700_000, "a" * 3_500_000])
async def test_long_words_beside_a_call_hold_up_nobody(store: Store, says: str) -> None:
    """Private data is looked for in what agents write, and they choose how long."""
    policy = load_policy(WORDS, "policy.yml")
    hidden: JsonObject = {"to": [], "bcc": [f"aaaa{n}" for n in range(5000)]}
    call = ProposedCall(tool="mail", args=hidden, tool_call_id="c0")
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    harness = ServiceHarness(store, policy)

    with soon():
        [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,), says=says))

    assert verdict.item_id
