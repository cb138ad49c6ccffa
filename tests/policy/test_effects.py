"""Calls have the same effect by their values, not by their spelling."""

from __future__ import annotations

from functools import partial

from keyturn.gateway.policy.evaluate import effect_of
from keyturn.gateway.policy.load import load_policy

POLICY = load_policy(
    'version: 1\ndefaults: {channel: "#a", needs: r, expires_in: 1h}\n'
    "roles: {r: {users: [U0ANA]}}\n",
    "policy.yml",
)
effect = partial(effect_of, POLICY, agent="support", tool="send")


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
