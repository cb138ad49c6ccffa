"""An evaluation returns a call's requirement, and fails closed without a rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.quorum import ineligible_reason
from keyturn.gateway.policy.evaluate import Evaluation, evaluate, is_idempotent
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy, ToolRule
from keyturn.gateway.protocol.http_api import DEFINITIONS_TOOL
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

POLICY = load_policy(
    """\
version: 1
defaults: {expires_in: 1h, channel: "#agents", needs: support}
roles:
  support: {usergroups: [S0SUPPORT]}
  senior: {users: [U0LEAD]}
  finance: {users: [U0FIN]}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  escalate: {needs: with_senior}
tools:
  look_up: {tier: auto}
  refund:
    tier: approve
    needs: [finance, U0ANA, S0NIGHT]
    allow: [approve, reject]
    description: "Refund {args.amount} to {args.card.number} of {args.names.0}"
    redact: [args.card.number]
    expires_in: 90s
    channel: C0REFUNDS
    requires_reason: [edit, reject]
    idempotent: true
  wire: {tier: escalate}
  drop: {tier: deny}
agents:
  night:
    needs: senior
    channel: "#night"
    tools: {refund: {tier: escalate, redact: [args.names]}, look_up: {channel: "#x"}}
""",
    "policy.yml",
)


def evaluation_of(tool: str, agent: str = "support", **args: JsonValue) -> Evaluation:
    return evaluate(POLICY, agent=agent, tool=tool, args=args)


def names(evaluation: Evaluation) -> list[str]:
    return [role.name for role in evaluation.requirement.of]


@pytest.mark.parametrize(
    ("tool", "tier"),
    [
        ("look_up", Tier.AUTO),
        ("refund", Tier.APPROVE),
        ("wire", Tier.ESCALATE),
        ("drop", Tier.DENY),
        ("unheard_of", Tier.APPROVE),
    ],
)
def test_an_unlisted_tool_has_the_default_tier(tool: str, tier: Tier) -> None:
    assert evaluation_of(tool).tier is tier


def test_a_reason_says_where_the_tier_comes_from() -> None:
    assert evaluation_of("refund").reasons == (
        "The policy lists this tool as approve.",
    )
    assert evaluation_of("<!channel>").reasons == (
        "The policy sets no tier for this tool; the default is approve.",
    )
    assert evaluation_of("refund", agent="night").reasons == (
        "The policy lists this tool as approve.",
        "The policy lists it as escalate for this agent.",
    )


def test_people_listed_by_id_and_by_role_are_frozen_into_the_demand() -> None:
    requirement = evaluation_of("refund").requirement

    assert requirement.approvals == 1
    assert [(r.name, r.users, r.usergroups) for r in requirement.of] == [
        ("finance", ("U0FIN",), ()),
        ("reviewers", ("U0ANA",), ("S0NIGHT",)),
    ]


def test_escalate_without_its_own_people_asks_those_of_the_tool() -> None:
    policy = load_policy(
        "version: 1\ntools: {wire: {tier: escalate, needs: U0ANA}}", "p"
    )

    requirement = evaluate(policy, agent="a", tool="wire", args={}).requirement

    assert requirement.approvals == 2
    assert requirement.of[0].users == ("U0ANA",)


def test_the_narrower_place_wins_for_people_channel_and_time() -> None:
    assert names(evaluation_of("other")) == ["support"]
    assert names(evaluation_of("other", agent="night")) == ["senior"]
    assert evaluation_of("other").channel == "#agents"
    assert evaluation_of("other", agent="night").channel == "#night"
    assert evaluation_of("refund", agent="night").channel == "C0REFUNDS"
    assert evaluation_of("look_up", agent="night").channel == "#x"
    assert evaluation_of("other").ttl_ms == 3_600_000
    assert evaluation_of("refund").ttl_ms == 90_000


def test_what_a_tool_declares_goes_into_the_ruling() -> None:
    evaluation = evaluation_of("refund")

    assert evaluation.allow == (Verb.APPROVE, Verb.REJECT)
    assert evaluation.requires_reason
    for tool in ("refund", "wire", "unlisted"):
        found = is_idempotent(POLICY, agent="support", tool=tool)
        assert found is evaluation_of(tool).idempotent is (tool == "refund")
    assert evaluation_of("other").allow == tuple(Verb)


def test_a_description_shows_values_as_text_and_hides_redacted_ones() -> None:
    evaluation = evaluation_of(
        "refund", amount=5, card={"number": "4111"}, names=["{args.amount}", "b"]
    )

    assert evaluation.description == (
        "Refund 5 to •••••• (hidden by policy) of {args.amount}"
    )


def test_a_description_says_what_is_missing_and_what_it_leaves_out() -> None:
    evaluation = evaluation_of("refund", amount="9" * 250, card=None, names=[])

    assert evaluation.description == (
        f"Refund {'9' * 200}… (50 more characters) to (missing) of (missing)"
    )


def test_nothing_below_a_redacted_value_is_shown() -> None:
    evaluation = evaluation_of("refund", agent="night", amount=1, names=["Ana"])

    assert "Ana" not in evaluation.description
    assert evaluation.redact == ("args.card.number", "args.names")


@pytest.mark.parametrize("needs", [("ghost",), ("ghost", "phantom")])
def test_an_empty_list_of_reviewers_approves_nothing(needs: tuple[str, ...]) -> None:
    policy = Policy(version=1, tools={"t": ToolRule(needs=needs)})
    anyone = Reviewer(
        team="T1", user="U1", usergroups=frozenset({"S1"}), account=AccountKind.MEMBER
    )

    requirement = evaluate(policy, agent="a", tool="t", args={}).requirement

    assert ineligible_reason(anyone, requirement, ()) is not None


def test_the_schema_of_the_policy_wins_over_that_of_the_agent() -> None:
    declared: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}}
    own: JsonObject = {"type": "object"}
    policy = Policy(version=1, tools={"t": ToolRule(args_schema=own)})

    listed = evaluate(policy, agent="a", tool="t", args={}, declared_schema=declared)
    other = evaluate(policy, agent="a", tool="u", args={}, declared_schema=declared)

    assert listed.args_schema == own
    assert other.args_schema == declared
    assert (listed.has_policy_schema, other.has_policy_schema) == (True, False)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strang"},
        {"$ref": "#"},
        {"properties": {"a": {"$dynamicRef": "file:///etc/passwd"}}},
    ],
)
def test_an_unusable_schema_of_the_agent_takes_edits_away(schema: JsonObject) -> None:
    evaluation = evaluate(
        POLICY, agent="a", tool="other", args={"a": 1}, declared_schema=schema
    )

    assert evaluation.args_schema is None
    assert Verb.EDIT not in evaluation.allow
    assert evaluation.reasons[-1] == (
        "The agent's schema for this tool is unusable: no edits here."
    )


def test_a_tool_that_allows_only_edits_can_still_be_rejected() -> None:
    policy = Policy(version=1, tools={"t": ToolRule(allow=(Verb.EDIT,))})

    evaluation = evaluate(
        policy, agent="a", tool="t", args={}, declared_schema={"type": "strang"}
    )

    assert evaluation.allow == (Verb.REJECT,)


TIERS = st.sampled_from(Tier)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(
    st.sampled_from(["amount", "card", "names", "x", "$ref", "type"]), JSON, max_size=4
)


@given(TIERS, st.none() | TIERS, st.none() | TIERS)
def test_what_is_set_for_one_agent_never_lowers_a_tier(
    default: Tier, listed: Tier | None, override: Tier | None
) -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "defaults": {"tier": default},
            "tools": {"t": {"tier": listed}},
            "agents": {"a": {"tools": {"t": {"tier": override}}}},
        }
    )

    tier = evaluate(policy, agent="a", tool="t", args={}).tier

    floors = [listed or default, *([override] if override else [])]
    assert tier is max(floors, key=lambda floor: floor.rank)


VERBS = st.none() | st.lists(st.sampled_from(Verb), min_size=1)


@given(VERBS, VERBS)
def test_what_is_set_for_one_agent_never_allows_another_decision(
    listed: list[Verb] | None, narrow: list[Verb] | None
) -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "tools": {"t": {"allow": listed}},
            "agents": {"a": {"tools": {"t": {"allow": narrow}}}},
        }
    )

    allowed = {*evaluate(policy, agent="a", tool="t", args={}).allow}

    both = {*(listed or Verb)} & {*(narrow or Verb)}
    assert allowed == (both or {Verb.REJECT})


@given(
    st.sampled_from(["refund", "wire", "drop", "other"]),
    st.sampled_from(["night", "support", ""]),
    OBJECTS,
    st.none() | OBJECTS,
)
def test_every_call_gets_a_ruling_whatever_its_arguments_and_schema(
    tool: str, agent: str, args: JsonObject, schema: JsonObject | None
) -> None:
    evaluation = evaluate(
        POLICY, agent=agent, tool=tool, args=args, declared_schema=schema
    )

    assert evaluation.tier.rank >= evaluation_of(tool).tier.rank
    assert evaluation.allow
    assert evaluation.requirement.of


OLD: JsonObject = {"name": "pay"}


@pytest.mark.parametrize(
    ("args", "title"),
    [
        ({"tools": {"pay": {}, "look": {}}}, "Approve 2 tools of the MCP server crm"),
        (
            {"tools": {"pay": {}, "look": {}}, "replaces": {"pay": OLD}},
            "Approve 2 tools of the MCP server crm (1 changed)",
        ),
        ({"tools": {"pay": {}}}, "Approve a new tool of the MCP server crm: pay"),
        (
            {"tools": {"pay": {}}, "replaces": {"pay": OLD}},
            "Approve a changed tool of the MCP server crm: pay",
        ),
        ({"tools": "all", "replaces": 3}, "Approve tools of the MCP server crm"),
    ],
)
def test_tool_definitions_have_their_own_title(args: JsonObject, title: str) -> None:
    args = {"server": "crm", **args}

    found = evaluate(POLICY, agent="mcp", tool=DEFINITIONS_TOOL, args=args)
    other = evaluate(POLICY, agent="mcp", tool="other", args=args)

    assert (found.description, other.description) == (title, "")
