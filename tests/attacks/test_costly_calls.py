"""Arguments from an attacker delay no other agent's calls, under any policy."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.edits import argument_errors
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness

SHORT_S = 2.0
"""Far more than any of it takes, far less than it takes without its limit."""


POLICY = r"""
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


def of(schema: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        of({"pattern": "^(a+)+$"}),
        {**of({"pattern": "^(a+)+$"}), "$schema": "http://json-schema.org/draft-07"},
        {"patternProperties": {"^(a+)+$": False}, "additionalProperties": True},
        {"patternProperties": {"^(a+)+$": False}, "additionalProperties": {}},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "properties": {"x": {"pattern": "^(a+)+$"}, "y": {"$ref": "#"}},
        },
    ],
)
def test_a_text_that_fits_a_pattern_nearly_is_refused_at_once(
    schema: JsonObject,
) -> None:
    text = "a" * 27 + "!"

    with soon():
        argument_errors(schema, {"x": text, text: 1, "y": {"x": text}})


def test_a_list_is_looked_through_for_doubles_at_once() -> None:
    elements: JsonObject = {"x": [{"a": number} for number in range(4000)]}
    schema = of({"uniqueItems": True})

    with soon():
        assert argument_errors(schema, elements) == {}

    assert argument_errors(schema, {"x": [{"a": 1}, {"a": 1.0}]})
    assert argument_errors(schema, {"x": [1, True, "1", [1]]}) == {}


def test_a_pattern_in_a_rule_is_matched_with_many_texts_at_once() -> None:
    policy = load_policy(POLICY, "policy.yml")

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
