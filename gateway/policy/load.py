"""Load a policy file, or name the line of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.approvals.strict_json import accept
from gateway.approvals.tiers import join
from gateway.documents import (
    BadDocument,
    Document,
    Path,
    Problem,
    dotted,
    near,
    parse_yaml,
    read_model,
)
from gateway.errors import BadJson, PolicyError
from gateway.policy.fields import is_user_id, is_usergroup_id
from gateway.policy.rules import DIRECT, Policy, ToolRule


class BadPolicy(PolicyError):
    """A policy file cannot be used.

    Attributes:
        problems: everything that is wrong with it; the text names the first.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        more = len(problems) - 1
        others = f" ({more} more; run 'twokey policy check')" if more else ""
        super().__init__(f"{problems[0].text}{others}", problems[0].place)


def load_policy(text: str, source: str, *, under: str = "") -> Policy:
    """Load a policy from YAML.

    Args:
        text: the YAML.
        source: its file name, for ``file:line``.
        under: the top-level key that holds the policy, when it is part of a file.

    Raises:
        BadPolicy: names the file, the line and a near name for a typo.
    """
    try:
        document = parse_yaml(text, source)
        if under:
            document = document.under(under)
        _check_json(document)
        policy = read_model(document, Policy)
    except BadDocument as error:
        raise BadPolicy(error.problems) from error
    problems = tuple(_cross_check(policy, document))
    if problems:
        raise BadPolicy(problems)
    return policy


def _check_json(document: Document) -> None:
    try:
        accept(document.value)
    except BadJson as error:
        tokens = error.pointer.split("/")[1:]
        path: Path = tuple(int(t) if t.isdigit() else t for t in tokens)
        raise BadDocument([document.problem(path, f"{error.problem}.")]) from error


def _cross_check(policy: Policy, document: Document) -> Iterator[Problem]:
    """Find what one field alone cannot show: names without a role, lowered tiers."""
    if DIRECT in policy.roles:
        text = f"{DIRECT!r} is taken for people listed by id; rename this role."
        yield document.problem(("roles", DIRECT), text)
    for path, names in _reviewers(policy):
        for name in names:
            if not (is_user_id(name) or is_usergroup_id(name) or name in policy.roles):
                text = f"{dotted(path)!r} names the role {name!r}, which is not in "
                text += f"'roles'; {near(name, policy.roles)}"
                yield document.problem(path, text)
    yield from _quorum_problems(policy, document)
    for agent, rule in policy.agents.items():
        for tool, override in rule.tools.items():
            path = ("agents", agent, "tools", tool, "tier")
            yield from _lowered(policy.tools.get(tool), override, document, path)


def _lowered(
    listed: ToolRule | None, override: ToolRule, document: Document, path: Path
) -> Iterator[Problem]:
    if listed is None or listed.tier is None or override.tier is None:
        return
    if join(listed.tier, override.tier) is not override.tier:
        text = f"{dotted(path)!r} is {override.tier.value!r}, lower than "
        text += f"{listed.tier.value!r} of the tool itself; a tier can only be raised."
        yield document.problem(path, text)


def _quorum_problems(policy: Policy, document: Document) -> Iterator[Problem]:
    escalate = policy.tiers.escalate
    base: Path = ("tiers", "escalate", "at_least")
    for role, count in escalate.at_least.items():
        path = (*base, role)
        if escalate.of is None or role not in escalate.of:
            text = f"{role!r} is not in 'tiers.escalate.of', so it could never vote; "
            yield document.problem(path, f"{text}add it there.")
        if not 1 <= count <= escalate.approvals:
            text = f"{dotted(path)!r} is {count}; use 1 to {escalate.approvals}, "
            yield document.problem(path, f"{text}the number of approvals.")


def _reviewers(policy: Policy) -> Iterator[tuple[Path, tuple[str, ...]]]:
    yield ("defaults", "reviewers"), policy.defaults.reviewers
    yield ("tiers", "escalate", "of"), policy.tiers.escalate.of or ()
    for tool, rule in policy.tools.items():
        yield ("tools", tool, "reviewers"), rule.reviewers or ()
    for agent, agent_rule in policy.agents.items():
        yield ("agents", agent, "reviewers"), agent_rule.reviewers or ()
        for tool, rule in agent_rule.tools.items():
            yield ("agents", agent, "tools", tool, "reviewers"), rule.reviewers or ()
