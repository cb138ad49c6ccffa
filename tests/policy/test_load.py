"""A policy file either loads or is refused with the line of its mistake."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.crosscheck import mistake
from keyturn.gateway.policy.load import BadPolicy, load_policy

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


def refusal(text: str) -> BadPolicy:
    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "policy.yml")
    return caught.value


def test_a_full_policy_loads_into_the_types_it_means() -> None:
    policy = load_policy(GOOD, "policy.yml")

    refund = policy.tools["process_refund"]
    assert refund.expires_in is not None
    assert refund.expires_in.total_seconds() == 1800
    assert policy.defaults.needs == ("support",)
    assert policy.agents["support"].tools["look_up_order"].tier == "notify"


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
        ("[approve, edit, reject]", "[]", "name at least one"),
        ("[senior, U0ANA]", "{of: senior, approvals: 2}", "one of the 'requirements'"),
        ("[senior, U0ANA]", "2", "write a role, Slack ids, or the name of one"),
        ("  support:\n    channel", "  support: 5\n  x:\n    channel", "a mapping is"),
        ("  senior:", "  Senior:", "'Senior' cannot name a role"),
        ("  senior:", "  reviewers: {users: [U0A]}\n  senior:", "'reviewers' is taken"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_to_write(
    old: str, new: str, problem: str
) -> None:
    assert old in GOOD

    error = refusal(GOOD.replace(old, new, 1))

    assert any(problem in str(found) for found in error.problems), error.problems
    assert error.location.startswith("policy.yml:")


def test_an_agent_cannot_lower_the_tier_of_a_tool() -> None:
    text = GOOD.replace(
        "{look_up_order: {tier: notify}}", "{process_refund: {tier: auto}}"
    )

    error = refusal(text)

    assert str(error) == (
        "policy.yml:24: 'agents.support.tools.process_refund.tier' is 'auto', lower "
        "than 'approve' of the tool itself; a tier can only be raised."
    )


def test_all_mistakes_are_found_at_once() -> None:
    text = GOOD.replace("tier: auto", "tier: x").replace("tier: notify", "tier: y")

    error = refusal(text)

    assert [problem.location for problem in error.problems] == [
        "policy.yml:9",
        "policy.yml:24",
    ]
    assert "1 more; run 'keyturn policy check FILE'" in str(error)


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
    words = (
        "requiredd",
        "propertis",
        "minItemss",
        "maxmum",
        "patternn",
        "enumm",
        "itemss",
    )

    found = mistake(dict.fromkeys(words, 1))

    assert found is not None
    assert found[0] == (min(words),)
