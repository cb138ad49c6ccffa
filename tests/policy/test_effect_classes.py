"""What a tool does to the world sets the least tier that its calls need."""

from __future__ import annotations

from functools import partial

import pytest

from keyturn.gateway.policy.evaluate import Evaluation, effect_of, evaluate, listed_tier
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Effect, Tier, gravest

FILE = """
version: 1
effects: {irreversible: escalate, reversible: approve}
tools:
  look: {tier: auto, effect: read}
  set: {tier: auto, effect: reversible, overridable: true}
  send: {tier: notify}
  pay: {tier: approve, effect: irreversible}
  drop: {tier: deny, effect: read}
agents:
  cautious: {tools: {look: {effect: irreversible}, pay: {effect: read}}}
"""
POLICY = load_policy(FILE, "policy.yml")


def decide(tool: str, agent: str = "any", asked: Tier | None = None) -> Evaluation:
    return evaluate(POLICY, agent=agent, tool=tool, args={}, requested_tier=asked)


@pytest.mark.parametrize(
    ("tool", "tier"),
    [
        ("look", Tier.AUTO),
        ("set", Tier.APPROVE),
        ("pay", Tier.ESCALATE),
        # It has no entry, so it counts as irreversible.
        ("send", Tier.ESCALATE),
        ("unlisted", Tier.ESCALATE),
        # It only adds: denied calls stay denied.
        ("drop", Tier.DENY),
    ],
)
def test_a_tool_needs_at_least_the_tier_of_what_it_does(tool: str, tier: Tier) -> None:
    assert decide(tool).tier is tier
    assert listed_tier(POLICY, agent="any", tool=tool) is tier


def test_no_run_of_an_agent_gets_less_than_the_effect_needs() -> None:
    assert decide("set", asked=Tier.AUTO).tier is Tier.APPROVE


def test_for_one_agent_an_effect_can_be_graver_and_never_less() -> None:
    assert decide("look", "cautious").effect_class is Effect.IRREVERSIBLE
    assert decide("look", "cautious").tier is Tier.ESCALATE
    assert decide("pay", "cautious").effect_class is Effect.IRREVERSIBLE


def test_the_reason_says_which_effect_and_whether_anybody_said_so() -> None:
    assert decide("pay").reasons[-1] == (
        "A tool whose effect is irreversible needs escalate at least."
    )
    assert decide("send").reasons[-1] == (
        "A tool without an effect counts as irreversible and needs escalate at least."
    )
    assert len(decide("look").reasons) == 1


def test_a_rule_reads_the_effect_as_it_counts() -> None:
    rule = "{to: escalate, when: call.effect == 'irreversible', because: final}"
    policy = load_policy(
        f"version: 1\ntools:\n  a: {{tier: auto, raise: [{rule}]}}\n"
        f"  b: {{tier: auto, effect: read, raise: [{rule}]}}\n",
        "policy.yml",
    )

    tiers = [evaluate(policy, agent="x", tool=one, args={}).tier for one in "ab"]

    assert tiers == [Tier.ESCALATE, Tier.AUTO]


def test_of_several_effects_the_gravest_counts() -> None:
    assert gravest([Effect.READ, Effect.REVERSIBLE]) is Effect.REVERSIBLE
    assert gravest([Effect.IRREVERSIBLE, Effect.READ]) is Effect.IRREVERSIBLE
    assert gravest([]) is Effect.IRREVERSIBLE


PLAIN = load_policy(
    'version: 1\ndefaults: {channel: "#a", needs: r, expires_in: 1h}\n'
    "roles: {r: {users: [U0ANA]}}\n",
    "policy.yml",
)
effect = partial(effect_of, PLAIN, agent="support", tool="send")


def test_a_short_text_is_the_same_in_each_spelling_that_people_read_as_one() -> None:
    assert effect(args={"to": "kim\u200b@example.com"}) == effect(
        args={"to": "kim@example.com"}
    )


def test_a_long_text_is_compared_as_it_is_written() -> None:
    letter = "word " * 1_000

    assert effect(args={"body": letter}) == effect(args={"body": letter})
    assert effect(args={"body": letter}) != effect(args={"body": letter + "\u200b"})


def test_arguments_that_cannot_be_written_as_json_repeat_nothing() -> None:
    assert effect(args={"amount": float("nan")}) == ""
