"""Requirements name the people who must agree, as data; combining them only adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.cli.policy import explanation_rows, replay_lines
from keyturn.gateway.approvals.quorum import Tally, stricter, tally
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role, Vote
from keyturn.gateway.policy.effective_rules import EffectiveRules, required
from keyturn.gateway.policy.evaluate import Evaluation, Facts, evaluate
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.replay import Row, replay
from keyturn.gateway.protocol.records import Person, Tier

HEAD = """\
version: 1
defaults: {needs: support}
roles:
  support: {users: [U0ANA, U0BEN, U0BOTH]}
  senior: {users: [U0LEAD, U0HEAD]}
  finance: {users: [U0FIN, U0BOTH]}
  alone: {users: [U0ONE]}
"""
REQUIREMENTS = """\
requirements:
  one_person: {of: [support, senior]}
  one_senior: {of: senior}
  pay_out: {all: [{of: [support]}, {of: [finance]}], editor_may_vote: false}
  three: {all: [{of: support}, {of: senior}, {of: finance}]}
"""
RULES = """\
tools:
  refund:
    tier: auto
    needs: one_person
    raise:
      - {when: args.amount > 10, to: approve, because: over 10}
      - {when: args.amount > 50, needs: one_senior, because: over 50}
      - {when: args.amount > 1000, to: escalate, needs: pay_out, because: over 1000}
  wire: {tier: escalate, needs: pay_out}
  letter: {tier: approve}
"""
ROLES = {
    "U0ANA": ("support",),
    "U0BEN": ("support",),
    "U0BOTH": ("support", "finance"),
    "U0LEAD": ("senior",),
    "U0FIN": ("finance",),
}
POLICY = load_policy(HEAD + REQUIREMENTS + RULES, "policy.yml")


def counted(requirement: Requirement, held: Mapping[str, Iterable[str]]) -> Tally:
    """Count a vote of each person, with the roles that they hold."""
    votes = [
        Vote(by=Person(team="T0", user=one), roles=(*roles,), action_hash="h", at_ms=1)
        for one, roles in held.items()
    ]
    return tally(requirement, votes, "h")


def agreed(requirement: Requirement, people: Iterable[str]) -> bool:
    return counted(requirement, {one: ROLES[one] for one in people}).is_met


def evaluation_of(tool: str, amount: float = 1) -> Evaluation:
    return evaluate(
        POLICY, agent="a", tool=tool, args={"amount": amount}, facts=Facts(now_ms=1)
    )


def who(requirement: Requirement) -> str:
    evaluation = evaluation_of("letter").with_(requirement=requirement)
    return dict(explanation_rows(POLICY, evaluation, None))["who"]


def problems(text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "policy.yml")
    return [str(problem) for problem in caught.value.problems]


HELD = st.dictionaries(
    st.sampled_from(["U1", "U2", "U3", "U4"]),
    st.sets(st.sampled_from(["support", "senior", "finance"])),
)


@given(HELD)
def test_all_needs_other_people_for_each_part(held: Mapping[str, set[str]]) -> None:

    is_met = counted(required(POLICY, ("three",)), held).is_met

    assert is_met == any(
        all(part in held[user] for part, user in zip(parts, chosen, strict=True))
        for parts in [("support", "senior", "finance")]
        for chosen in permutations(held, 3)
    )


NAMES = st.sampled_from(["one_person", "one_senior", "pay_out", "three"])


@given(NAMES, NAMES, HELD)
def test_what_is_joined_is_met_exactly_when_both_are(
    first: str, second: str, held: Mapping[str, set[str]]
) -> None:
    one, other = required(POLICY, (first,)), required(POLICY, (second,))

    both = stricter(one, other)

    is_met = counted(one, held).is_met and counted(other, held).is_met
    assert counted(both, held).is_met is is_met
    assert both.editor_may_vote is (one.editor_may_vote and other.editor_may_vote)


@given(st.sets(st.sampled_from([1, 20, 60, 2000]), min_size=2, max_size=2), HELD)
def test_rules_only_add_needs(amounts: set[int], held: Mapping[str, set[str]]) -> None:
    less, more = (evaluation_of("refund", amount) for amount in sorted(amounts))

    assert more.tier.rank >= less.tier.rank
    if counted(more.requirement, held).is_met and less.tier.needs_people:
        assert counted(less.requirement, held).is_met


def test_one_senior_alone_is_enough_above_50_and_nobody_else_is() -> None:
    small, large = evaluation_of("refund", 20), evaluation_of("refund", 51)

    assert small.tier is large.tier is Tier.APPROVE
    assert agreed(small.requirement, ["U0ANA"])
    assert agreed(large.requirement, ["U0LEAD"])
    assert not agreed(large.requirement, ["U0ANA", "U0BEN", "U0FIN"])
    assert large.reasons[-1] == "Needs one_senior: over 50."
    assert evaluation_of("refund", 1001).reasons[-1] == (
        "Raised to escalate, and needs pay_out: over 1000."
    )


def test_a_rule_with_a_requirement_alone_puts_an_auto_call_to_people() -> None:
    rule = "{when: args.x > 1, needs: one_senior, because: b}"
    policy = load_policy(
        HEAD + REQUIREMENTS + f"tools: {{pay: {{tier: auto, raise: [{rule}]}}}}",
        "p.yml",
    )

    facts = Facts(now_ms=1)
    evaluation = evaluate(policy, agent="a", tool="pay", args={"x": 2}, facts=facts)

    assert evaluation.tier is Tier.APPROVE


def test_nobody_can_meet_a_requirement_that_the_policy_does_not_know() -> None:
    unknown = required(POLICY, ("one_persn",))

    assert not agreed(unknown, ROLES)
    assert agreed(required(POLICY, ("one_person",)), ["U0ANA"])


def test_a_rule_that_cannot_be_checked_needs_what_it_names() -> None:
    evaluation = evaluate(
        POLICY, agent="a", tool="refund", args={}, facts=Facts(now_ms=1)
    )

    assert evaluation.tier is Tier.ESCALATE
    assert not agreed(evaluation.requirement, ["U0ANA", "U0BEN", "U0FIN"])
    assert agreed(evaluation.requirement, ["U0ANA", "U0BEN", "U0FIN", "U0LEAD"])


def test_explain_says_in_words_who_has_to_agree() -> None:
    one_senior = required(POLICY, ("one_senior",))

    assert who(one_senior) == "one person of senior (U0LEAD, U0HEAD)"
    assert who(required(POLICY, ("pay_out",))) == (
        "2 people, 1 finance and 1 support, out of support (U0ANA, U0BEN, U0BOTH) or "
        "finance (U0FIN, U0BOTH), editors cannot approve their edit"
    )
    joined = stricter(Requirement(approvals=1, of=POLICY.roles_named(("support",))),
                      required(POLICY, ("one_senior",)))  # fmt: skip
    assert who(joined).startswith("1 senior and 1 support, who may be the same people")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requirements: {r: {of: [supporters]}}", "8: 'requirements.r.of' names the"),
        ("requirements: {r: {of: [U0ANA]}}", "'U0ANA' cannot name a role;"),
        # Added to the ids of `defaults.needs`, only people on both lists could vote.
        ("requirements: {r: {of: [alone], approvals: 2}}", "'requirements.r' needs 2"),
        ("requirements: {r: {all: [{of: support}]}}", "write at least 2"),
        (
            "requirements: {r: {of: support, all: [{of: senior}, {of: senior}]}}",
            "write either 'of: [support]' or 'all:",
        ),
        (
            "requirements: {r: {approvals: 2, all: [{of: support}, {of: senior}]}}",
            "'approvals' goes with 'of'",
        ),
        (
            "requirements: {support: {of: support, approvals: 2}}",
            "'requirements.support' has the name of a role, and 'needs' may name",
        ),
        (
            "requirements: {r: {of: support}}\ntools: {t: {needs: [r, senior]}}",
            "'tools.t.needs' lists the requirement 'r' with others; write it alone",
        ),
        (
            "requirements: {pay_out: {of: support}}\ntools: {t: {needs: payout}}",
            (
                "9: 'tools.t.needs' names 'payout', which is neither in 'roles' nor in "
                "'requirements'; did you mean 'pay_out'?"
            ),
        ),
        ("tiers: {escalate: {needs: alone}}", "'tiers.escalate.needs' needs 2 people,"),
        (
            (
                "requirements: {r: {of: support}}\ntools:\n  t: {raise: [{to: deny, "
                "needs: r, when: 'true', because: b}]}"
            ),
            "calls of tier 'deny' get no decision, so it cannot have 'needs'",
        ),
        (
            "tools: {t: {raise: [{when: 'true', because: b}]}}",
            "it asks for nothing; write 'to: escalate' or 'needs: …'",
        ),
        ("agents: {a: {tools: {t: {tier: auto}}}}", "8: 'agents.a.tools.t.tier' is"),
    ],
)
def test_a_requirement_that_leads_nowhere_is_refused(text: str, said: str) -> None:
    assert any(said in one for one in problems(HEAD + text)), problems(HEAD + text)


def test_a_replay_says_whose_word_an_approved_call_would_lack_now() -> None:
    call = {"args": {"amount": 60}}
    base = {"at_ms": 1, "agent": "a", "tool": "refund", "tier": "approve"}
    rows = [
        {**base, "name": "item.authorized", "item": item, "actor": who, "call": call}
        | {"roles": roles}
        for item, who, roles in (
            ("i1", "T0/U0ANA", ["support"]),
            ("i2", "T0/U0LEAD", ["senior"]),
        )
    ]

    junior, senior = replay(POLICY, [Row.model_validate(row) for row in rows])

    assert (junior.was, junior.now, junior.lacking) == (
        Tier.APPROVE,
        Tier.APPROVE,
        {"senior": 1},
    )
    assert junior.is_changed
    assert not senior.is_changed
    told = list(replay_lines([junior]))
    assert "    The original approvals would not be enough: 1 more from senior." in told
    assert told[-1].startswith("1 calls: 1 would need more, 0 would need less")


def test_who_is_called_later_and_could_not_vote_is_not_called() -> None:
    head = HEAD.replace("needs: support", "needs: NAME")
    tiers = "tiers: {approve: {escalate_at: 50%, escalate_to: senior}}\n"
    here, nowhere = (
        evaluate(
            load_policy(head.replace("NAME", name) + REQUIREMENTS + tiers, "p.yml"),
            agent="a",
            tool="t",
            args={},
            facts=Facts(now_ms=1),
        )
        for name in ("one_person", "pay_out")
    )

    assert (here.escalate_to, here.escalate_at_ms) == ("senior", 1_800_000)
    assert (nowhere.escalate_to, nowhere.escalate_at_ms) == ("", 0)


def test_the_same_user_group_under_another_role_is_called() -> None:
    policy = load_policy(
        "version: 1\n"
        "defaults: {needs: senior}\n"
        "roles: {senior: {usergroups: [S0SENIOR]}, leads: {usergroups: [S0SENIOR]}}\n"
        "requirements: {two: {of: senior, approvals: 2}}\n"
        "tiers: {escalate: {needs: two, escalate_at: 50%, escalate_to: leads}}\n"
        "tools: {pay: {tier: escalate}}\n",
        "p.yml",
    )

    evaluation = evaluate(policy, agent="a", tool="pay", args={})

    assert evaluation.escalate_to == "leads"
    assert evaluation.escalate_at_ms > 0


BY_WAYS = """\
version: 1
defaults: {needs: support}
roles:
  support: {usergroups: [S0SUPPORT]}
  senior: {users: [U0LEAD, U0HEAD], notify: none}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  approve: {notify: none, escalate_at: 80%, escalate_to: "#leads"}
  escalate: {needs: with_senior}
tools: {refund: {tier: approve}}
"""


def requirement_at(tier: Tier, text: str = BY_WAYS) -> Requirement:
    policy = load_policy(text, "policy.yml")
    return EffectiveRules(policy, "support", "refund").requirement(tier)


def told(requirement: Requirement) -> dict[str, Notify]:
    return {role.name: role.notify for role in requirement.roles}


def test_a_role_is_mentioned_unless_it_or_its_tier_says_otherwise() -> None:
    assert told(requirement_at(Tier.APPROVE)) == {"support": Notify.NONE}
    assert told(requirement_at(Tier.ESCALATE)) == {
        "support": Notify.MENTION,
        "senior": Notify.NONE,
    }


def test_a_tier_silences_every_part_of_a_requirement() -> None:
    needs = BY_WAYS.replace(
        "tools: {refund: {tier: approve}}",
        "tools: {refund: {tier: approve, needs: both}}",
    ).replace(
        ", notify: none}\nrequirements:\n",
        "}\nrequirements:\n  both: {all: [{of: support}, {of: senior}]}\n",
    )

    assert set(told(requirement_at(Tier.APPROVE, needs)).values()) == {Notify.NONE}
    assert set(told(requirement_at(Tier.ESCALATE, needs)).values()) == {Notify.MENTION}


@pytest.mark.parametrize("pair", [*product(Notify, repeat=2)])
def test_the_demand_that_reaches_people_wins(pair: tuple[Notify, Notify]) -> None:
    first, second = (
        Requirement(
            approvals=1, of=(Role(name="support", users=("U0ANA",), notify=one),)
        )
        for one in pair
    )

    both = stricter(first, second.with_(approvals=2))

    (role,) = both.roles
    assert role.notify is Notify.strongest(*pair)
    assert [*Notify].index(role.notify) == max(map([*Notify].index, pair))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("notify: none}\nreq", "notify: loud}\nreq", "notify"),
        (
            "approve: {notify: none,",
            "approve: {notify: none, remind_at: 50%,",
            "'remind_at' mentions reviewers, which 'notify: none' turns off",
        ),
    ],
    ids=["unknown", "reminded"],
)
def test_a_contradiction_is_refused_with_advice(old: str, new: str, said: str) -> None:
    assert old in BY_WAYS

    with pytest.raises(BadPolicy) as found:
        load_policy(BY_WAYS.replace(old, new), "policy.yml")

    assert said in str(found.value)


def test_the_policy_knows_every_way_of_notifying_that_it_names() -> None:
    policy = load_policy(BY_WAYS.replace("approve}}", "approve, notify: dm}}"), "p.yml")

    assert policy.notifying == {*Notify} - {Notify.MENTION}


def test_who_is_called_later_for_a_tool_is_notified_as_the_tool_says() -> None:
    text = (
        BY_WAYS.replace("approve}}", "approve, notify: dm}}")
        .replace(
            "needs: with_senior}",
            "needs: with_senior, escalate_at: 80%, escalate_to: senior}",
        )
        .replace("[U0LEAD, U0HEAD], notify: none", "[U0LEAD, U0HEAD]")
    )
    rules = EffectiveRules(load_policy(text, "p.yml"), "support", "refund")

    _, roles = rules.escalation(Tier.ESCALATE, rules.requirement(Tier.ESCALATE))

    assert [(role.name, role.notify) for role in roles] == [("senior", Notify.DM)]
