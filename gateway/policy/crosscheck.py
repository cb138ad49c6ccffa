"""Validate references between the fields of a policy."""

from __future__ import annotations

from collections.abc import Iterator

from twokey.gateway.approvals.requirement import Notify
from twokey.gateway.policy.batch_checks import batch_problems
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.fields import (
    host_of,
    is_channel,
    is_slack_id,
    placeholders,
)
from twokey.gateway.policy.requirement_checks import (
    requirement_problems,
    requirement_roles,
    too_few,
)
from twokey.gateway.policy.rules import DIRECT, EVERY_TOOL, Policy, ToolRule, WindowRule
from twokey.gateway.policy.schema_mistakes import mistake
from twokey.gateway.policy.similar_checks import similar_problems
from twokey.gateway.policy.totals import hides
from twokey.gateway.policy.type_check import AMOUNTS, path_problem, rule_problem
from twokey.gateway.protocol.effect import gravest
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier, join
from twokey.gateway.validation_errors import Path, ProblemAt, dotted, near


def cross_check(policy: Policy) -> Iterator[ProblemAt]:
    """Yield what leads nowhere, what is looser for one agent, what is idle."""
    # A role of this name would be joined with the people who are listed by id, and its
    # quorum counted with theirs.
    if DIRECT in policy.roles:
        text = f"{DIRECT!r} is taken for people listed by id; rename this role."
        yield ("roles", DIRECT), text
    for path, names in _reviewers(policy):
        for name in names:
            if not (is_slack_id(name) or name in policy.roles):
                text = f"{dotted(path)!r} names the role {name!r}, which is not in "
                text += f"'roles'; {near(name, policy.roles)}"
                yield path, text
    yield from _quorum_problems(policy)
    yield from _seeded_problems(policy)
    yield from _unheard(policy)
    yield from _on_call(policy)
    yield from requirement_problems(policy)
    for name, window in policy.windows.items():
        yield from _window_problems(policy, name, window)
    for tool, rule in policy.tools.items():
        yield from _tool_problems(policy, ("tools", tool), (rule,))
    for agent, agent_rule in policy.agents.items():
        for tool, override in agent_rule.tools.items():
            base: Path = ("agents", agent, "tools", tool)
            listed = policy.tools.get(tool)
            yield from _lowered(policy, listed, override, (*base, "tier"))
            yield from _widened(listed, override, (*base, "allow"))
            both = (listed, override) if listed else (override,)
            yield from _tool_problems(policy, base, both)


def schema_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield what is wrong with schemas; nothing can be checked against such a one."""
    for base, schema in _schemas(policy):
        found = mistake(schema)
        if found is not None:
            inside, problem = found
            path = (*base, *inside)
            text = f"{dotted(path)!r}: this is not a usable JSON Schema 2020-12: "
            yield path, text + problem


def _lowered(
    policy: Policy,
    listed: ToolRule | None,
    override: ToolRule,
    path: Path,
) -> Iterator[ProblemAt]:
    own = listed.tier if listed is not None else None
    floor = policy.defaults.tier if own is None else own
    # `join` decides everywhere what is higher; there is no second order of tiers.
    if override.tier is None or join(floor, override.tier) is override.tier:
        return
    text = f"{dotted(path)!r} is {override.tier.value!r}, lower than "
    if own is None:
        text += f"'defaults.tier', {floor.value!r}; a tier can only be raised here, so "
        text += f"list {str(path[-2])!r} under 'tools' with the lower tier."
    else:
        text += f"{floor.value!r} of the tool itself; a tier can only be raised."
    yield path, text


def _widened(
    listed: ToolRule | None, override: ToolRule, path: Path
) -> Iterator[ProblemAt]:
    if listed is None or listed.allow is None:
        return
    for index, verb in enumerate(override.allow or ()):
        if verb not in listed.allow:
            text = f"{dotted(path)!r} has {verb.value!r}, which the tool itself does "
            text += "not allow; for one agent decisions can only be left out, so "
            text += f"remove it, or allow it under 'tools.{path[-2]}'."
            yield (*path, index), text


def _quorum_problems(policy: Policy) -> Iterator[ProblemAt]:
    escalate = policy.tiers.escalate
    base: Path = ("tiers", "escalate", "at_least")
    for role, count in escalate.at_least.items():
        path = (*base, role)
        if escalate.of is None or role not in escalate.of:
            text = f"{role!r} is not in 'tiers.escalate.of', so it could never vote; "
            yield path, f"{text}add it there."
        if not 1 <= count <= escalate.approvals:
            text = f"{dotted(path)!r} is {count}; use 1 to {escalate.approvals}, "
            yield path, f"{text}the number of approvals."
        yield from too_few(policy, path, (role,), count)
    called = escalate.escalate_to
    # Who is called later may vote from the start, so they count towards the quorum.
    others = () if called is None or is_channel(called) else (called,)
    if escalate.of:
        path = ("tiers", "escalate", "of")
        names = (*escalate.of, *others)
        yield from too_few(policy, path, names, escalate.approvals)


def _seeded_problems(policy: Policy) -> Iterator[ProblemAt]:
    rule = policy.seeded_defects
    for index, call in enumerate(rule.calls if rule else ()):
        tier, _ = EffectiveRules(policy, call.agent, call.tool).tier()
        if not tier.needs_people:
            path: Path = ("seeded_defects", "calls", index, "tool")
            text = f"{dotted(path)!r} is {call.tool!r}, whose tier is {tier.value!r}: "
            text += "nobody decides such a call; name a tool that waits for people."
            yield path, text


def _unheard(policy: Policy) -> Iterator[ProblemAt]:
    for tier in (Tier.APPROVE, Tier.ESCALATE):
        called = policy.tiers.waiting(tier).escalate_to
        rule = policy.roles.get(called or "")
        if rule is not None and rule.notify is Notify.NONE:
            path: Path = ("tiers", tier.value, "escalate_to")
            text = f"{dotted(path)!r} calls {called!r}, which 'notify: none' keeps "
            text += "from being mentioned; remove one of the two."
            yield path, text


def _on_call(policy: Policy) -> Iterator[ProblemAt]:
    """Yield rotations that are unknown, and people in them who may not decide."""
    for name, rule in policy.roles.items():
        path: Path = ("roles", name, "on_call")
        if rule.on_call is None:
            continue
        rotation = policy.on_call.get(rule.on_call)
        if rotation is None:
            text = f"{dotted(path)!r} names the rotation {rule.on_call!r}, which is "
            yield path, f"{text}not in 'on_call'; {near(rule.on_call, policy.on_call)}"
            continue
        # Who is in a user group is known to Slack alone.
        others = [one for one in rotation.people if one not in rule.users]
        if others and not rule.usergroups:
            text = f"{others[0]!r} is on call for {name!r} but does not hold that "
            yield path, f"{text}role, so could not decide; add them to its 'users'."


def _reviewers(policy: Policy) -> Iterator[tuple[Path, tuple[str, ...]]]:
    yield ("defaults", "reviewers"), policy.defaults.reviewers
    yield ("protect", "unfreeze"), policy.protect.unfreeze or ()
    yield ("spot_checks", "of"), policy.spot_checks.of if policy.spot_checks else ()
    yield ("tiers", "escalate", "of"), policy.tiers.escalate.of or ()
    yield from requirement_roles(policy)
    for tier in (Tier.APPROVE, Tier.ESCALATE):
        called = policy.tiers.waiting(tier).escalate_to
        if called is not None and not is_channel(called):
            yield ("tiers", tier.value, "escalate_to"), (called,)
    for tool, rule in policy.tools.items():
        yield ("tools", tool, "reviewers"), rule.reviewers or ()
    for agent, agent_rule in policy.agents.items():
        yield ("agents", agent, "reviewers"), agent_rule.reviewers or ()
        for tool, rule in agent_rule.tools.items():
            yield ("agents", agent, "tools", tool, "reviewers"), rule.reviewers or ()


def _window_problems(
    policy: Policy, name: str, window: WindowRule
) -> Iterator[ProblemAt]:
    known = {*policy.tools, *(t for a in policy.agents.values() for t in a.tools)}
    path: Path
    for index, tool in enumerate(window.tools):
        if tool != EVERY_TOOL and tool not in known:
            path = ("windows", name, "tools", index)
            text = f"{dotted(path)!r} is {tool!r}, which is not in 'tools'; "
            yield path, text + near(tool, known)
    for key, source in (("by", window.by), ("sum", window.sum)):
        if source is None or not source.startswith("args."):
            continue
        path = ("windows", name, key)
        if EVERY_TOOL in window.tools:
            text = f"{dotted(path)!r} is for every tool, but not every tool has "
            yield path, f"{text}{source!r}; list the tools that do."
        for place, schema in _schemas(policy):
            tool = str(place[-2])
            if not window.covers(tool):
                continue
            problem = path_problem(
                schema, source, kinds=AMOUNTS if key == "sum" else None
            )
            if problem is not None:
                text = f"{dotted(path)!r} reads {source!r}, but {tool!r} {problem}"
                yield path, text


def _schemas(policy: Policy) -> Iterator[tuple[Path, JsonObject]]:
    """Yield every schema of arguments that the file has, with its place."""
    for base, rule in policy.tool_rules():
        if rule.args_schema is not None:
            yield (*base, "args_schema"), rule.args_schema


def _path_problems(
    own: ToolRule, schema: JsonObject, base: Path
) -> Iterator[ProblemAt]:
    """Yield paths that lead nowhere: one to hide would be shown in full."""
    named: list[tuple[Path, str]] = [
        ((*base, key, index), path)
        for key, paths in (("redact", own.redact), ("same_by", own.same_by))
        for index, path in enumerate(paths)
    ]
    named += [
        ((*base, key), found["path"])
        for key, template in (("description", own.description), ("link", own.link))
        for found in placeholders(template or "")
    ]
    if own.preview is not None:
        named += [
            ((*base, "preview", *([key] if key in own.preview.written else [])), path)
            for key, path in own.preview.paths.items()
        ]
    for place, path in named:
        problem = path_problem(schema, path)
        if problem is not None:
            text = f"{dotted(place)!r} names {path!r}, but the tool {problem}"
            yield place, text


def _link_problems(policy: Policy, own: ToolRule, base: Path) -> Iterator[ProblemAt]:
    hosts, link = policy.defaults.link_hosts, own.link
    if link is None or hosts is None or host_of(link) in hosts:
        return
    path = (*base, "link")
    text = f"{dotted(path)!r} leads to {host_of(link)!r}, which is not among "
    text += "'defaults.link_hosts'; add the host there, or change the link."
    yield path, text


def _total_problems(
    base: Path, rules: tuple[ToolRule, ...], schema: JsonObject | None
) -> Iterator[ProblemAt]:
    """Yield totals of what cannot be added up, or is hidden here."""
    path, redact = (*base, "totals"), [one for rule in rules for one in rule.redact]
    # For one agent the wider totals hold, unless it has totals of its own.
    named = next((rule.totals for rule in reversed(rules) if rule.totals), ())
    for one in named:
        if hidden := hides(redact, one):
            text = f"{dotted(path)!r} adds up {one!r}, which is hidden by 'redact' "
            yield path, f"{text}({hidden}); remove one of the two."
            continue
        source = one.partition("|")[0]
        problem = path_problem(schema, source, kinds=AMOUNTS) if schema else None
        if problem is not None:
            yield path, f"{dotted(path)!r} names {source!r}, but the tool {problem}"


def _tool_problems(
    policy: Policy, base: Path, rules: tuple[ToolRule, ...]
) -> Iterator[ProblemAt]:
    """Check one place of the file; ``rules`` are the wider and then the narrower."""
    own, tool = rules[-1], str(base[-1])
    listed = policy.tools.get(tool)
    base_tier = listed.tier if listed is not None else None
    given = [rule.tier for rule in rules if rule.tier is not None]
    floor = join(policy.defaults.tier if base_tier is None else base_tier, *given)
    said = [rule.effect for rule in rules if rule.effect]
    floor = join(floor, policy.effects.get(gravest(said), floor))
    schemas = [rule.args_schema for rule in rules if rule.args_schema is not None]
    if schemas:
        # The narrower schema: it is the one that arguments are checked against.
        yield from _path_problems(own, schemas[-1], base)
    yield from _link_problems(policy, own, base)
    schema = schemas[-1] if schemas else None
    yield from _total_problems(base, rules, schema)
    yield from similar_problems(base, rules, floor, schema)
    yield from batch_problems(policy, base, rules, floor)
    overridable = [rule.overridable for rule in rules if rule.overridable is not None]
    # The narrowest place that says something wins, as `EffectiveRules` reads it.
    if overridable[-1:] == [True] and floor is Tier.DENY:
        text = f"{dotted(base)!r} is denied and 'overridable'; nothing overrides a "
        yield (*base, "overridable"), f"{text}denial, so remove it."
    tiers = own.triage.tiers if own.triage else ()
    if tiers and overridable[-1:] != [True] and join(floor, *tiers) not in tiers:
        path = (*base, "triage", "tiers")
        text = f"{dotted(path)!r} names no tier that the tool can have, since it is "
        text += f"{floor.value!r} at least, so triage would never be asked; "
        text += "name a higher one, or remove 'triage'."
        yield path, text
    for index, rule in enumerate(own.raise_):
        path = (*base, "raise", index)
        is_idle = rule.needs is None and join(floor, rule.tier) is floor
        if is_idle and overridable[-1:] != [True]:
            text = f"{dotted((*path, 'to'))!r} is {rule.tier.value!r}, not above "
            text += f"{floor.value!r} of the tool itself, so it could never raise it; "
            text += "write a higher one, or remove the rule."
            yield (*path, "to"), text
        problem = rule_problem(policy, tool, rule.when, schema)
        if problem is not None:
            path = (*path, "when")
            yield path, f"{dotted(path)!r}: {problem}"
