"""A policy file either loads or is refused with the line of its mistake."""

from __future__ import annotations

import re

import pytest

from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.load import BadPolicy, load_policy, mistake

GOOD = """\
version: 1
defaults: {tier: approve, expires_in: 1h, channel: "#agents", needs: support}
roles:
  support: {usergroups: [S0SUPPORT]}
  senior: {users: [U0LEAD, U0HEAD]}
tiers:
  escalate: {needs: with_senior}
tools:
  look_up_order: {tier: auto}
  process_refund:
    tier: approve
    allow: [approve, edit, reject]
    needs: [senior, U0ANA]
    description: "Refund {args.amount} for order {args.order_id}"
    args_schema: {properties: {amount: {type: number}}, additionalProperties: true}
    requires_reason: [edit, reject]
    idempotent: true
    redact: [args.card_number]
    expires_in: 30m
    channel: C0REFUNDS
agents:
  support:
    channel: "#support"
    tools: {look_up_order: {tier: notify}}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior, approvals: 1}]}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "policy.yml")
    found = [str(problem) for problem in caught.value.problems]
    assert all(re.match(r"policy\.yml:[0-9]+: ", one) for one in found)
    return found


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version: 1", "version: 2", "policy.yml:1: 'version' is 2; write 1."),
        ("{tier: auto}", "{teir: auto}", "'tools.look_up_order.teir'; did you mean"),
        ("{tier: auto}", "{tier: atuo}", "policy.yml:9: 'tools.look_up_order.tier' is"),
        ("needs: support", "needs: supporters", "policy.yml:2: 'defaults.needs' names"),
        ("expires_in: 30m", "expires_in: 0m", "'0m' is not a duration"),
        ("expires_in: 30m", "expires_in: 31d", "'31d' is longer than 30 days"),
        ("S0SUPPORT", "U0ANA", "'U0ANA' is not a Slack user group id"),
        ("U0ANA", "Ana", "'Ana' is neither a role of this file nor a Slack user id"),
        ("[senior, U0ANA]", "[senior, senior]", "'senior' appears twice; remove one"),
        ("channel: C0REFUNDS", "channel: refunds", "'refunds' is not a channel"),
        ("{args.amount}", "{amount}", "'{amount}' is not known here"),
        ("{args.amount}", "{args.amount", "has a brace without its pair"),
        ("args.card_number", "card_number", "'card_number' is not a path"),
        ("{type: number}", "{$ref: 'https://h/s'}", "it refers to 'https://h/s', whi"),
        (
            "{type: number}",
            "{maximum: 9223372036854775808}",
            "properties.amount.maximum': an integer",
        ),
        ("{type: number}", "{enum: [1, 9223372036854775808]}", "enum[1]': an integer"),
        ("{type: number}", "{pattern: 'a(?=b)'}", "'a(?=b)' cannot be checked in litt"),
        ("tools: {look_up", "tools: {}\n    tools: {look_up", "appears twice"),
        ("[approve, edit, reject]", "[]", "write at least 1"),
        ("[senior, U0ANA]", "{of: senior, approvals: 2}", "a list is needed here"),
        ("[senior, U0ANA]", "2", "a list is needed here, such as [a, b]"),
        ("  support:\n    channel", "  support: 5\n  x:\n    channel", "a mapping is"),
        ("  senior:", "  Senior:", "'Senior' cannot name a role"),
        ("  senior:", "  reviewers: {users: [U0A]}\n  senior:", "'reviewers' is taken"),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, problem: str) -> None:
    assert old in GOOD

    found = problems(GOOD.replace(old, new, 1))

    assert any(problem in one for one in found), found


def test_an_agent_cannot_lower_the_tier_of_a_tool() -> None:
    text = GOOD.replace(
        "{look_up_order: {tier: notify}}", "{process_refund: {tier: auto}}"
    )

    [problem] = problems(text)

    assert problem == (
        "policy.yml:24: 'agents.support.tools.process_refund.tier' is 'auto', lower "
        "than 'approve', the tier of the tool for all agents; here it can only be "
        "raised."
    )


def test_all_mistakes_are_found_at_once() -> None:
    text = GOOD.replace("tier: auto", "tier: x").replace("tier: notify", "tier: y")

    with pytest.raises(BadPolicy, match="1 more; run 'keyturn policy check FILE'"):
        load_policy(text, "policy.yml")
    assert [one[:13] for one in problems(text)] == ["policy.yml:9:", "policy.yml:24"]


@pytest.mark.parametrize("text", ["", "[]", "just text", "null", "version: 1\n\x00"])
def test_what_is_no_policy_at_all_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        load_policy(text, "policy.yml")


def test_a_policy_inside_the_settings_keeps_the_lines_of_that_file() -> None:
    text = "tenant: acme\npolicy:\n  version: 1\n  tols: {}\n"

    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "keyturn.yml", under="policy")

    assert str(caught.value) == (
        "keyturn.yml:4: Unknown key 'tols'; did you mean 'tools'?"
    )


def test_the_digest_covers_the_meaning_and_not_the_text() -> None:
    plain = load_policy("version: 1\ntools: {a: {tier: auto}}", "p")
    commented = load_policy("# why\ntools:\n  a: {tier: 'auto'}\nversion: 1", "p")
    spelled = load_policy(
        "version: 1\ndefaults: {tier: approve}\ntools: {a: {tier: auto}}", "p"
    )
    other = load_policy("version: 1\ntools: {a: {tier: notify}}", "p")

    assert plain.digest == commented.digest == spelled.digest
    assert plain.digest != other.digest
    assert plain.digest.startswith("sha256:")


def test_of_several_misspelt_keywords_the_same_one_is_reported_each_time() -> None:
    words = ["requiredd", "propertis", "minItemss", "maxmum", "patternn", "enumm"]

    found = mistake(dict.fromkeys(words, 1))

    assert found is not None
    assert found[0] == (min(words),)


RULES = """\
version: 1
defaults: {expires_in: 30m, needs: support}
roles: {support: {usergroups: [S0SUPPORT]}, senior: {users: [U0LEAD]}}
holidays: [12-25, 2026-04-03]
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 24h}
  burst: {tools: ["*"], by: call.agent, sum: 1, within: 10m}
tiers:
  notify: {channel: "#notices"}
  approve: {expires_in: 2h, remind_at: 50%, escalate_at: 80%, escalate_to: "#leads"}
  escalate: {needs: [support, senior], escalate_at: 80, escalate_to: senior}
tools:
  refund:
    tier: approve
    args_schema:
      type: object
      properties:
        amount: {type: number}
        customer: {type: string}
        lines: {type: array, items: {$ref: '#/$defs/line'}}
        free: {}
      $defs: {line: {type: object, properties: {sku: {type: string}}}}
    raise:
      - {to: escalate, when: "args.amount > 500", because: over 500}
      - {to: deny, when: windows.refunded > 1000, because: over 1000 a day}
  look_up: {tier: auto, overridable: true}
agents: {night: {tools: {look_up: {tier: approve}}}}
protect: {pending_per_agent: 5, pause_after_rejections: 3}
"""
RULE = "args.amount > 500"


def test_a_policy_with_every_kind_of_rule_loads() -> None:
    policy = load_policy(RULES, "policy.yml")

    assert policy.defaults.expires_in.total_seconds() == 1800
    assert policy.tiers.approve.remind_at == 50
    assert policy.windows["refunded"].within.total_seconds() == 86_400
    assert policy.tools["refund"].raise_[1].because == "over 1000 a day"
    assert policy.protect.same_rejected_within == 3
    assert set(policy.channels) == {"#agent-approvals", "#notices", "#leads"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "pause_after_rejections: 3",
            "unfreeze: seniors",
            "policy.yml:28: 'protect.unfreeze' names the role 'seniors', which is not ",
        ),
        ("because: over 500", "because: ''", "write one line of at most 200"),
        (RULE, "args.amount >", "policy.yml:24: 'tools.refund.raise[0].when':"),
        (RULE, "args.amoount > 1", "has no 'amoount' in its args_schema; did you mean"),
        (RULE, "args.lines.sku == 'a'", "has a list before 'sku'"),
        (RULE, "args.amount > '500'", "\"args.amount > '500'\" mixes types that CEL"),
        (RULE, "args.amount * 2 > 1", "so calculate with 2.0 and not 2"),
        (RULE, "args.free + 'a' > 5", "mixes types"),
        (RULE, "args.lines.exists(l, l.sku > 5)", "mixes types"),
        (RULE, "args.amount", "'args.amount' is neither true nor false but float;"),
        (RULE, "windows.brust > 5", "there is no window 'brust'; did you mean"),
        ("tools: [refund]", "tools: [look_up]", "window 'refunded' does not count"),
        ("tools: [refund]", "tools: [refnd]", "'refnd', which is not in 'tools'; did"),
        ("tools: [refund]", "tools: []", "policy.yml:6: 'windows.refunded.tools'"),
        ("tools: [refund]", 'tools: ["*"]', "not every tool has 'args.customer'; list"),
        ("by: args.customer", "by: customer", "cannot be counted by; write args.x"),
        ("sum: args.amount", "sum: args.lines", "has array there, which cannot be"),
        (", sum: args.amount", "", ".sum' is missing; add it."),
        ("sum: 1", "sum: 2", "'windows.burst.sum' is 2; text is needed here"),
        ("  burst:", "  Burst:", "'Burst' cannot name a window; use lower-case"),
        ("{users: [U0LEAD]}", "{}", "this role has no holders"),
        ("12-25", "12-32", "policy.yml:4: 'holidays[0]': '12-32' is not a day; write"),
        ("remind_at: 50%", "remind_at: 150%", "'150%' is not a share; write 50%"),
        (
            "protect: {",
            "spot_checks: {share: 150%, of: [support]}\nprotect: {",
            "'150%' is not a share; write 50%",
        ),
        ("escalate_to: senior", "escalate_to: '@ana'", "is neither a role of this"),
        (", escalate_to: senior", "", "'escalate_at' and 'escalate_to' belong"),
        ("to: deny", "to: approve", "is 'approve', not above 'approve' of the tool it"),
        ("pending_per_agent: 5", "pending_per_agent: 0", "'protect.pending_per_agent'"),
    ],
)
def test_a_mistake_in_a_rule_has_its_line(old: str, new: str, problem: str) -> None:
    assert old in RULES

    found = problems(RULES.replace(old, new, 1))

    assert any(problem in one for one in found), found


def test_a_rule_of_one_agent_is_checked_against_the_tools_schema() -> None:
    text = RULES.replace(
        "{look_up: {tier: approve}}",
        "{refund: {raise: [{to: deny, when: args.amountt > 1, because: x}]}}",
    )

    (problem,) = problems(text)

    assert problem.startswith(
        "policy.yml:27: 'agents.night.tools.refund.raise[0].when'"
    )
    assert problem.endswith(
        "has no 'amountt' in its args_schema; did you mean 'amount'?"
    )


@pytest.mark.parametrize(
    ("tried", "not_tried"),
    [
        ("args.a + args.b == true", "args.a + args.b + args.c == true"),
        (
            "[1.0, 2.0].all(x, [1.0].all(y, x + args.d == true))",
            f"{[1.0] * 48}.all(x, [1.0].all(y, x + args.d == true))",
        ),
    ],
)
def test_a_slow_rule_loads_untried(tried: str, not_tried: str) -> None:
    text = "version: 1\ntools: {t: {raise: [{to: deny, because: x, when: 'RULE'}]}}"

    assert "mixes types" in problems(text.replace("RULE", tried))[0]
    assert load_policy(text.replace("RULE", not_tried), "policy.yml")


def test_rules_windows_and_holidays_are_part_of_the_digest() -> None:
    digests = {
        load_policy(text, "p").digest
        for text in (
            RULES,
            RULES.replace("> 500", "> 501"),
            RULES.replace("within: 24h", "within: 25h"),
            RULES.replace("12-25", "12-26"),
            RULES.replace("pending_per_agent: 5", "pending_per_agent: 6"),
        )
    }

    assert len(digests) == 5


def test_a_seeded_call_that_nobody_decides_is_refused_by_its_tier() -> None:
    call = "{tool: look_up, agent: day, args: {}, says: s, defect: d}"
    text = f"{RULES}seeded_defects: {{every: 1h, calls: [{call}]}}\n"

    [problem] = problems(text)

    assert "is 'look_up', whose tier is 'auto': such a call gets" in problem
    assert load_policy(text.replace("tool: look_up", "tool: refund"), "policy.yml")


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
        (
            "version: 1\ntools: {'*': {tier: deny}}",
            "2: 'tools.*': '*' cannot be a",
        ),
        ("version: 1\ntools: {' pay': {}}", "2: 'tools. pay': ' pay' cannot be a name"),
        (tool(SCHEMA, "redact: [args.amuont]"), "names 'args.amuont', but 'refund'"),
        (tool(SCHEMA, "redact: [args.cards.number]"), "has a list before 'number'"),
        (
            tool(SCHEMA, "description: 'Pay {args.amuont}'"),
            "5: 'tools.refund.description' names 'args.amuont', but 'refund' has no",
        ),
        (
            "version: 1\nroles: {a: {users: [U0ANA]}}\ntiers: {escalate: {needs: [a]}}",
            "3: 'tiers.escalate.needs' needs 2 people, and 1 can be asked; add users",
        ),
        (A_WINDOW, "3: 'windows.w.sum' names 'args.total', but 'pay' has no 'total'"),
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
        ("{required: [a, a]}", "is not allowed here (uniqueItems: true); mend"),
        ("{required: amount}", "'amount' is not allowed here (type: 'array')"),
        ("{properties: {a: 5}}", "5 is not allowed here (type: ["),
        ("{pattern: 'a{9999999999}'}", "it takes too long to check; mend or"),
        ("{properties: {a: {anyOf: [{maximumm: 5}]}}}", "there is no 'maximumm'; did"),
    ],
)
def test_a_schema_that_checks_no_arguments_is_refused(schema: str, said: str) -> None:
    (problem,) = problems(tool(f"args_schema: {schema}"))

    assert problem.startswith("policy.yml:4: 'tools.refund.args_schema")
    assert "this is not a usable JSON Schema 2020-12: " in problem
    assert said in problem
    assert not problem.endswith("?.")


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
        "args.cards.exists(c, c.number == 'A') || timestamp(args.name) > now",
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
