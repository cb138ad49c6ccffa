"""What would silently mean something else, or nothing, is refused at load."""

from __future__ import annotations

import re

import pytest

from keyturn.gateway.policy.load import BadPolicy, load_policy

SCHEMA = (
    "args_schema: {type: object, properties: {amount: {type: number}, name: "
    "{type: string}, cards: {type: array, items: {type: object, properties: "
    "{number: {type: string}}}}}}"
)
A_WINDOW = f"""\
version: 1
agents: {{a: {{tools: {{pay: {{{SCHEMA}}}}}}}}}
windows: {{w: {{tools: [pay], sum: args.total, within: 1h}}}}
"""


def tool(*lines: str) -> str:
    """Write a policy with one tool, whose entry has these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"version: 1\ntools:\n  refund:\n{body}"


def rule(when: str) -> str:
    """Write a policy with one rule."""
    entry = f'- {{to: deny, when: "{when}", because: x}}'
    return tool("tier: approve", SCHEMA, "raise:", entry)


def problems(text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "policy.yml")
    found = [str(problem) for problem in caught.value.problems]
    assert all(re.match(r"policy\.yml:[0-9]+: ", one) for one in found)
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (tool("tier:"), "4: 'tools.refund.tier' is empty; write a value"),
        (tool("channel: #refunds"), "in quotes where it begins with '#', or remove"),
        (tool("requires_reason: yes"), "requires_reason' is 'yes'; a list is needed"),
        (tool("overridable: 1"), "overridable' is 1; write true or false"),
        ("version: true", "1: 'version': true is not known here; write version: 1."),
        (
            "version: 1\nprotect: {pause_after_rejections: true}",
            "2: 'protect.pause_after_rejections' is true; write a whole number",
        ),
        ("version: 1\ntools: {'*': {tier: deny}}", "2: 'tools.*': '*' names nothing"),
        ("version: 1\ntools: {' pay': {}}", "2: 'tools. pay': ' pay' cannot be a name"),
        (tool(SCHEMA, "redact: [args.amuont]"), "names 'args.amuont', but the tool"),
        (tool(SCHEMA, "redact: [args.cards.number]"), "has a list before 'number'"),
        (
            tool(SCHEMA, "description: 'Pay {args.amuont}'"),
            "5: 'tools.refund.description' names 'args.amuont', but the tool has no",
        ),
        (
            "version: 1\nroles: {a: {users: [U0ANA]}}\ntiers: {escalate: {needs: [a]}}",
            "3: 'tiers.escalate.needs' needs 2 people, and 1 can be asked; add users",
        ),
        (A_WINDOW, "3: 'windows.w.sum' reads 'args.total', but 'pay' has no 'total'"),
    ],
)
def test_what_would_silently_be_something_else_is_refused(text: str, said: str) -> None:
    assert any(said in one for one in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{type: string}", "it is 'string', and arguments are an object; write object"),
        (
            "{$schema: 'http://json-schema.org/draft-04/schema#', type: object}",
            "leave it out, or write 'https://json-schema.org/draft/2020-12/schema'",
        ),
        ("{properties: {a: {type: nmbr}}}", "'nmbr' is not a type; did you mean"),
        ("{required: [a, a]}", "is not allowed here (uniqueItems: true); mend or"),
        ("{required: amount}", "'amount' is not allowed here; write a list."),
        ("{properties: {a: 5}}", "5 is not allowed here; write a mapping or true or"),
        ("{pattern: 'a{9999999999}'}", "cannot be checked in little time; mend or"),
        ("{properties: {a: {anyOf: [{maximumm: 5}]}}}", "there is no 'maximumm'; did"),
    ],
)
def test_a_schema_that_checks_no_arguments_is_refused(schema: str, said: str) -> None:
    (problem,) = problems(tool(f"args_schema: {schema}"))

    assert problem.startswith("policy.yml:4: 'tools.refund.args_schema")
    assert "this is not a usable JSON Schema 2020-12: " in problem
    assert said in problem
    assert not problem.endswith("?.")


def test_a_mistake_in_a_schema_has_the_line_of_its_keyword() -> None:
    schema = ["args_schema:", "  type: object", "  properties:", "    a: {maximumm: 5}"]

    (problem,) = problems(tool(*schema))

    assert problem.startswith(
        "policy.yml:7: 'tools.refund.args_schema.properties.a.maximumm': "
    )


@pytest.mark.parametrize(
    ("when", "part"),
    [
        ("args.amount > 5 && args.name > 5", "'args.name > 5'"),
        ("!(args.amount > 5 || (args.name + 1 == 'a'))", "\"args.name + 1 == 'a'\""),
        ("1 / 0 > 5", "'1 / 0 > 5' fails on every call; remove it."),
        ("args.amount.x > 5", "args.amount.x: the tool has number before 'x'"),
    ],
)
def test_each_part_of_a_rule_has_to_work(when: str, part: str) -> None:
    (problem,) = problems(rule(when))

    assert problem.startswith("policy.yml:7: 'tools.refund.raise[0].when': ")
    assert part in problem


@pytest.mark.parametrize(
    "when",
    [
        "has(args.name) && args.name.startsWith('x') || args.amount > 5",
        "args.amount > 5 ? args.name == 'a' : args.name == 'b'",
        "100 / recent.failures_1h > 5",
        "(args.cards[0].number == 'a && b' && !(args.amount > 5.0))",
        "weekday(now, 'UTC') in [6, 7] || hour(now, 'UTC') >= 20",
    ],
)
def test_a_rule_that_works_for_some_call_is_kept(when: str) -> None:
    found = load_policy(rule(when), "policy.yml")

    assert found.tools["refund"].raise_[0].when == when


def test_null_is_a_value_in_a_schema_and_every_element_can_be_hidden() -> None:
    schema = "args_schema: {type: object, properties: {a: {enum: [null, 1]}}}"
    many = "redact: [args.cards.*.number, args.*.x]"

    assert load_policy(tool(schema), "p").tools["refund"].args_schema is not None
    assert len(load_policy(tool(SCHEMA, many), "p").tools["refund"].redact) == 2
