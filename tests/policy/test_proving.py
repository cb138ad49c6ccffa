"""A proof holds for every call, and a call that has less is a real one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.quorum import tally
from keyturn.gateway.policy.evaluate import Facts, evaluate
from keyturn.gateway.policy.expressions import ask, compiled, scope
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.proving import Claim, Proof
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.levels import examples

SCHEMA = """{type: object, required: [amount], properties: {
  amount: {type: number, minimum: 1, maximum: 5000},
  currency: {enum: [EUR, USD]}, urgent: {type: boolean}, note: {type: string},
  tags: {type: array}, box: {type: object, properties: {size: {type: number}}}}}"""


def policy_of(*rules: str, tier: str = "approve", more: str = "") -> Policy:
    raises = "".join(f"\n      - {{{one}, because: it is so}}" for one in rules)
    listed = f"\n    raise: {raises}" if rules else ""
    return load_policy(
        f"""
version: 1
defaults: {{needs: staff}}
roles: {{staff: {{users: [U0ANA, U0BEN, U0CHLOE]}}, senior: {{users: [U0DAN]}}}}
tools:
  pay:
    tier: {tier}
    args_schema: {SCHEMA}{listed}
{more}
""",
        "p.yml",
    )


def facts(_agent: str, _args: JsonObject) -> Facts:
    return Facts(now_ms=1_767_225_600_000, requests_10m=1)


def proof_of(
    policy: Policy, where: str = "", agents: Any = ("",), **least: Any
) -> Proof:
    wanted: dict[str, Any] = {"tier": Tier.AUTO, "people": 0, "schema": None, **least}
    only = compiled(where or "true")
    return Claim(policy, "pay", where=only, facts=facts, **wanted).proof(agents)


LARGE = "to: escalate, when: args.amount > 1000"


def test_each_large_call_is_proven_to_need_two_people() -> None:
    policy = policy_of(LARGE)
    assert proof_of(policy, "args.amount > 1000", people=2).is_proven
    assert proof_of(policy, "args.amount > 1000", tier=Tier.ESCALATE).is_proven
    assert proof_of(policy, tier=Tier.APPROVE).is_proven


@pytest.mark.parametrize(
    ("rule", "where", "args"),
    [
        (LARGE, "args.amount >= 1000", {"amount": 1000}),
        ("to: escalate, when: args.amount == 7", "args.amount > 6", {"amount": 5000}),
        (
            "to: escalate, when: \"has(args.currency) && args.currency == 'EUR'\"",
            "args.amount > 4999",
            {"amount": 5000},
        ),
        (
            "to: escalate, when: args.amount > 10 && !args.urgent",
            "args.amount > 10",
            {"urgent": True, "amount": 5000},
        ),
    ],
)
def test_a_gap_between_rules_is_found(rule: str, where: str, args: JsonObject) -> None:
    proof = proof_of(policy_of(rule), where, tier=Tier.ESCALATE)
    assert (proof.args, proof.tier, proof.people) == (args, Tier.APPROVE, 1)


def test_the_schema_bounds_the_proof() -> None:
    rule = "to: approve, when: args.amount >= 1"
    assert proof_of(policy_of(rule, tier="auto"), tier=Tier.APPROVE).is_proven
    wider: JsonObject = {"type": "object", "properties": {"amount": {"type": "number"}}}
    free = load_policy(
        "version: 1\ndefaults: {needs: [U0ANA]}\ntools:\n  pay: {tier: auto, raise: "
        f"[{{{rule}, because: x}}]}}\n",
        "p.yml",
    )
    proof = proof_of(free, tier=Tier.APPROVE, schema=wider)
    assert proof.args is not None
    assert proof.args["amount"] < 1  # type: ignore[operator]


def test_a_call_that_does_not_fit_the_policys_schema_counts() -> None:
    """It is escalated and can be approved, so a rule of the policy has to stop it."""
    rule = "to: deny, when: args.amount >= 1"
    proof = proof_of(policy_of(rule), tier=Tier.DENY)
    assert proof.args is not None
    assert (proof.tier, proof.people) == (Tier.ESCALATE, 2)
    assert not isinstance(proof.args.get("amount"), int | float)
    # A schema that was given with the claim bounds the calls themselves.
    schema: JsonObject = {
        "type": "object",
        "properties": {"amount": {"type": "number", "minimum": 1}},
        "required": ["amount"],
    }
    assert proof_of(policy_of(rule), tier=Tier.DENY, schema=schema).is_proven


@pytest.mark.parametrize(
    ("kind", "low", "high", "gap"), [("integer", 2, 4, 3), ("number", 2, 3, 2.5)]
)
def test_a_gap_between_two_is_found(kind: str, low: int, high: int, gap: float) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"amount": {"type": kind}},
        "required": ["amount"],
    }
    covered = f"args.amount <= {low} || args.amount >= {high}"
    policy = policy_of(f"to: escalate, when: {covered}")
    proof = proof_of(policy, tier=Tier.ESCALATE, schema=schema)
    assert proof.args == {"amount": gap}


@pytest.mark.parametrize(
    "condition",
    [
        "args.amount * 2.0 > 20.0",
        "args.amount > double(size(args.note))",
        "args.note.startsWith('a') || args.amount > 10",
        "args.note.matches('a') || args.amount > 10",
        "['a'].exists(x, x == args.note) || args.amount > 10",
        "windows.paid > 10",
        "recent.failures_1h == 0",
        "hour(now, 'UTC') >= 0",
        "call.agent != 'x'",
        "args.note < 'b' || args.amount > 10",
        "args.tags[0] == 'b' || args.amount > 10",
        "args.tags == ['b'] || args.amount > 10",
        "['b'] == args.tags || args.amount > 10",
        "args.note in args.tags || args.amount > 10",
        "'b' in args.tags || args.amount > 10",
        "args.box.size > 10 || args.amount > 10",
        "args.note == args.currency || args.amount > 10",
        "(args.amount) > 10 - 0",
        "args.amount > 99007199254740993.0",
    ],
)
def test_an_unbounded_condition_is_never_proven(condition: str) -> None:
    more = "windows: {paid: {tools: [pay], sum: args.amount, within: 1h}}"
    policy = policy_of(f'to: escalate, when: "{condition}"', more=more)
    proof = proof_of(policy, "args.amount > 10", tier=Tier.ESCALATE)
    assert not proof.is_proven
    assert proof.args is not None or proof.unproven == (condition,)
    # A rule only raises, so it does not prevent the proof of less.
    assert proof_of(policy, tier=Tier.APPROVE).is_proven
    if not condition.startswith(("windows", "recent", "hour", "call")):
        found = proof_of(policy_of(), condition, tier=Tier.APPROVE)
        assert found.unproven == (condition,)


def test_a_true_condition_that_cannot_be_bounded_prevents_the_proof() -> None:
    policy = policy_of('to: escalate, when: "args.amount + 1.0 > args.amount"')
    proof = proof_of(policy, tier=Tier.ESCALATE)
    assert proof.unproven == ("args.amount + 1.0 > args.amount",)


def test_a_schema_that_cannot_be_represented_prevents_the_proof() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"amount": {"type": "number", "multipleOf": 7}},
        "required": ["amount"],
    }
    policy = policy_of("to: escalate, when: args.amount == 3")
    proof = proof_of(policy, "args.amount == 8", tier=Tier.ESCALATE, schema=schema)
    assert proof.unproven == ("the schema of the arguments",)


def test_a_claim_about_no_call_has_no_cases() -> None:
    nothing = "args.amount > 9000 && args.amount < 9"
    proof = proof_of(policy_of(), nothing, tier=Tier.DENY)
    assert (proof.cases, proof.args) == (0, None)


def test_a_run_that_may_ask_for_less_counts() -> None:
    assert proof_of(policy_of(), tier=Tier.APPROVE).is_proven
    text = "version: 1\ntools: {pay: {tier: approve, overridable: true}}\n"
    proof = proof_of(load_policy(text, "p.yml"), tier=Tier.APPROVE)
    assert (proof.args, proof.tier, proof.people) == ({}, Tier.AUTO, 0)


def test_each_agent_is_proven() -> None:
    more = "agents: {night: {needs: senior}}"
    policy = policy_of(more=more)
    assert proof_of(policy, people=1, agents=["", "night"]).is_proven
    found = proof_of(policy, people=2, agents=["night"])
    assert (found.agent, found.people) == ("night", 1)


def test_a_window_that_cannot_count_a_call_prevents_the_proof() -> None:
    more = (
        "windows: {paid: {tools: [pay], by: args.note, sum: args.amount, within: 1h}}"
    )
    policy = policy_of(more=more)

    def unusable(_agent: str, _args: JsonObject) -> Facts:
        return Facts(now_ms=1, requests_10m=1, problems=("no usable resource",))

    claim = Claim(
        policy,
        "pay",
        tier=Tier.ESCALATE,
        people=0,
        where=compiled("true"),
        schema=None,
        facts=unusable,
    )
    assert claim.proof([""]).unproven == ("the windows of the tool",)


NUMBERS = st.sampled_from([-1.5, 0, 1, 2, 2.5, 3, 1000])
TEXTS = st.sampled_from(["a", "b", ""])
ATOMS = st.one_of(
    st.builds(
        "args.x {} {}".format,
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        NUMBERS,
    ),
    st.builds("args.t == '{}'".format, TEXTS),
    st.builds("args.t in ['{}', '{}']".format, TEXTS, TEXTS),
    st.sampled_from(["has(args.x)", "args.f", "args.t != null", "args.x in [1, 2.5]"]),
)


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({}) && ({})".format, inner, inner),
        st.builds("({}) || ({})".format, inner, inner),
    )


CONDITIONS = st.recursive(ATOMS, joined, max_leaves=3)
ANY = st.one_of(
    NUMBERS, TEXTS, st.booleans(), st.none(), st.floats(-5, 2000), st.integers(-3, 1100)
)
ARGS = st.dictionaries(st.sampled_from(["x", "t", "f"]), ANY)


@settings(max_examples=examples(100))
@given(st.lists(CONDITIONS, max_size=2), CONDITIONS, st.lists(ARGS, min_size=20))
def test_no_call_contradicts_a_proof(
    rules: list[str], where: str, calls: list[JsonObject]
) -> None:
    rows = "".join(
        f"\n      - {{to: escalate, because: x, when: {one!r}}}".replace("\\'", "''")
        for one in (one.replace("'", '"') for one in rules)
    )
    listed = f"\n    raise: {rows}" if rules else ""
    policy = load_policy(
        f"version: 1\ndefaults: {{needs: [U0ANA, U0BEN]}}\ntools:\n  pay:\n"
        f"    tier: approve{listed}\n",
        "p.yml",
    )
    proof = proof_of(policy, where, tier=Tier.ESCALATE)
    assert not proof.unproven

    def is_less(args: JsonObject) -> bool:
        found = evaluate(policy, agent="", tool="pay", args=args, facts=facts("", args))
        holds = ask(compiled(where), scope(args, {})).holds
        return holds and found.tier is Tier.APPROVE

    if proof.args is None:
        assert not [args for args in calls if is_less(args)]
    else:
        assert is_less(proof.args)
        found = evaluate(policy, agent="", tool="pay", args=proof.args)
        assert tally(found.requirement, (), "").need == proof.people
