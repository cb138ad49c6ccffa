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
TWO_ROLES = """\
version: 1
roles: {a: {users: [U0ANA]}, b: {usergroups: [S0B]}}
tiers: {escalate: {needs: two}}
requirements: {two: {all: [{of: [a, b]}, {of: a, approvals: 2}]}}
"""
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
        (tool("needs: [U0ANA, ~]"), "4: 'tools.refund.needs[1]' is empty"),
        (tool("args_schema:"), "4: 'tools.refund.args_schema' is empty"),
        ("version: 1\nroles:\n  support:\n", "3: 'roles.support' is empty"),
        (
            tool("requires_reason: yes"),
            "requires_reason' is 'yes'; a list is needed here, such as [a, b]",
        ),
        (tool("overridable: 1"), "overridable' is 1; write true or false"),
        ("version: true", "1: 'version': true is not known here; write version: 1."),
        ("version: 1.0", "1: 'version': 1.0 is not known here; write version: 1."),
        ("version: '1'", "1: 'version': '1' is not known here; write version: 1."),
        (
            "version: 1\nprotect: {pause_after_rejections: true}",
            "2: 'protect.pause_after_rejections' is true; write a whole number",
        ),
        (
            "version: 1\nprotect: {pending_per_agent: 017}",
            "2: 'protect.pending_per_agent' is '017'; write a whole number",
        ),
        (
            "version: 1\nprotect: {pending_per_agent: 1.5}",
            "2: 'protect.pending_per_agent' is 1.5; write a whole number",
        ),
        (
            "version: 1\nwindows: {w: {tools: ['*'], sum: true, within: 1h}}",
            "2: 'windows.w.sum' is true; text is needed here",
        ),
        ("version: 1\ntools: {'*': {tier: deny}}", "2: 'tools.*': '*' names nothing"),
        ("version: 1\ntools: {' pay': {}}", "2: 'tools. pay': ' pay' cannot be a name"),
        ("version: 1\nagents: {'': {}}", "2: 'agents.': '' cannot be a name"),
        (
            "version: 1\nagents: {a: {tools: {'delete_*': {}}}}",
            "2: 'agents.a.tools.delete_*': 'delete_*' names nothing",
        ),
        (
            tool(SCHEMA, "redact: [args.amuont]"),
            "names 'args.amuont', but the tool has no 'amuont' in its args_sch",
        ),
        (tool(SCHEMA, "redact: [args.cards.number]"), "has a list before 'number'"),
        (tool(SCHEMA, "redact: [args.amount.x]"), "has number before 'x'"),
        (
            tool(SCHEMA, "description: 'Pay {args.amuont}'"),
            "5: 'tools.refund.description' names 'args.amuont', but the tool has no",
        ),
        (
            "version: 1\nroles: {a: {users: [U0ANA, U0ANA]}}",
            "2: 'roles.a.users': 'U0ANA' appears twice; remove one.",
        ),
        (
            "version: 1\nroles: {a: {users: [U0ANA]}}\ntiers: {escalate: {needs: [a]}}",
            "3: 'tiers.escalate.needs' needs 2 people, and 1 can be asked; add users",
        ),
        (
            TWO_ROLES,
            "4: 'requirements.two' needs 2 people of a, and 1 can be asked",
        ),
        (
            A_WINDOW,
            "3: 'windows.w.sum' reads 'args.total', but 'pay' has no 'total'",
        ),
    ],
)
def test_what_would_silently_be_something_else_is_refused(text: str, said: str) -> None:
    assert any(said in one for one in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{type: string}", "it is 'string', and arguments are an object; write object"),
        ("{type: [array, 'null']}", "and arguments are an object; write object."),
        (
            "{$schema: 'http://json-schema.org/draft-04/schema#', type: object}",
            "leave it out, or write 'https://json-schema.org/draft/2020-12/schema'",
        ),
        ("{$schema: 7}", "7 is another draft; leave it out"),
        (
            "{properties: {a: {type: nmbr}}}",
            "'nmbr' is not a type; did you mean 'number'",
        ),
        (
            "{properties: {a: {type: [5]}}}",
            "[5] is not a type; use one of array, boolean",
        ),
        ("{properties: []}", "args_schema.properties': this is not a usable"),
        ("{required: amount}", "'amount' is not allowed here; write a list."),
        (
            "{properties: {a: 5}}",
            "5 is not allowed here; write a mapping or true or fal",
        ),
        (
            "{required: [a, a]}",
            "is not allowed here (uniqueItems: true); mend or remove",
        ),
        ("{pattern: 'a{9999999999}'}", "cannot be checked in little time; mend or"),
        (
            "{$ref: '#/x'}",
            "it refers to '#/x', which is not in it; mend or remove",
        ),
        ("{propertis: {a: {}}}", "no 'propertis'; did you mean 'properties'?"),
        (
            "{properties: {a: {anyOf: [{maximumm: 5}]}}}",
            "there is no 'maximumm'; did you mean 'maximum'?",
        ),
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
        ("args.amount > 500 || args.name > 5", "'args.name > 5'"),
        ("!(args.amount > 5 || (args.name + 1 == 'a'))", "\"args.name + 1 == 'a'\""),
        (
            "args.name == 'a' && size(args.name)",
            "'size(args.name)' is neither true",
        ),
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
        "args.cards.exists(c, c.number == '1' || c.number == '2') && args.amount > 5",
        "weekday(now, 'UTC') in [6, 7] || hour(now, 'UTC') >= 20",
        "hour(now, 'UTC') != 24 && now.getHours() > 3",
        "args['na' + 'me'] == 'a' || timestamp('2026-07-04T02:30:00Z') > now",
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
