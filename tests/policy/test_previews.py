"""A preview names whole arguments of the tool; others are reported."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy

FILE = """\
version: 1
defaults: {{needs: U0ANA}}
tools:
  mail:
    preview: {preview}
    args_schema:
      type: object
      properties: {{{names}}}
"""


def preview_of(preview: str, *names: str) -> Preview | None:
    listed = ", ".join(f"{name}: {{}}" for name in names)
    policy = load_policy(FILE.format(preview=preview, names=listed), "policy.yml")
    return evaluate(policy, agent="support", tool="mail", args={}).preview


def test_the_kind_alone_means_the_arguments_of_these_names() -> None:
    found = preview_of("email", "to", "body")

    assert found is not None
    assert [*found.labels] == ["to", "cc", "bcc", "subject", "body"]
    assert preview_of("sql", "statement") == Preview.model_validate("sql")


def test_each_part_can_be_an_argument_of_another_name() -> None:
    found = preview_of(
        "{kind: email, to: args.recipients, body: args.text}", "recipients", "text"
    )

    assert found is not None
    assert (found.labels["recipients"], found.labels["text"]) == ("To", "Body")
    assert found.text == "text"


@pytest.mark.parametrize(
    ("preview", "problem"),
    [
        ("{to: args.to}", r"'tools\.mail\.preview\.kind' is missing"),
        ("{kind: sql, body: args.body}", "'body' is no part of 'sql'; write statement"),
        ("{kind: email, to: to}", "'to' is no whole argument; write args.name"),
        ("{kind: email, to: args.body}", "two parts are the same argument"),
        ("{kind: email, to: args.whom}", r"preview\.to' names 'args\.whom', but"),
        ("sql", r"'tools\.mail\.preview' names 'args\.statement', but the tool"),
    ],
)
def test_a_preview_that_shows_something_else_is_refused(
    preview: str, problem: str
) -> None:
    with pytest.raises(PolicyError, match=rf"yml:5: .*{problem}"):
        preview_of(preview, "to", "subject", "body")


def test_one_agent_can_have_another_preview() -> None:
    file = FILE.format(preview="email", names="body: {}, text: {}") + (
        "agents: {night: {tools: {mail: {preview: {kind: email, body: args.text}}}}}\n"
    )
    policy = load_policy(file, "policy.yml")

    found = evaluate(policy, agent="night", tool="mail", args={}).preview

    assert found is not None
    assert found.text == "text"
