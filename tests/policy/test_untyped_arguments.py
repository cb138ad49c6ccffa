"""``keyturn policy check`` points out arguments of rules and windows without a type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keyturn.gateway.policy.load import load_with_lines
from keyturn.gateway.policy.untyped import untyped_arguments

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
        "p.yml:2: 'tools.close.raise[0].when': args.level has no declared type: add "
        "args_schema to 'close', or a value of another type than the rule expects, "
        'such as "50" for 50, escalates the call.'
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

    assert "declare it in the args_schema of 'close', or" in warning


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
    by, total = warnings(WINDOW.replace("SCHEMA", "tier: approve"))

    assert by == (
        "p.yml:5: 'windows.paid.by': args.customer has no declared type: add "
        "args_schema to 'refund', or spellings such as 7 and \"07\" may count apart."
    )
    assert total == (
        "p.yml:6: 'windows.paid.sum': args.amount has no declared type: add "
        "args_schema to 'refund', or what cannot be added up, such as \"49 EUR\", "
        "escalates the call."
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
