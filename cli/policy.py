"""Check a policy, explain it, prove it, or try it on past calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, argument, option, printable
from keyturn.cli.policy_inputs import CallFile, facts_of, parse_time
from keyturn.gateway.approvals.quorum import clauses, tally
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role
from keyturn.gateway.audit_export import read_export
from keyturn.gateway.errors import BadJson, SettingsError
from keyturn.gateway.policy import on_call
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.eligibility import reachable_requirements, unused
from keyturn.gateway.policy.evaluate import Evaluation, Facts, FiredRule, evaluate
from keyturn.gateway.policy.expressions import BadExpression, compiled
from keyturn.gateway.policy.hours import zone
from keyturn.gateway.policy.load import BadPolicy, rule_problem
from keyturn.gateway.policy.on_call import asked_from
from keyturn.gateway.policy.proving import Claim, Proof
from keyturn.gateway.policy.replay import Replayed, Row, replay
from keyturn.gateway.policy.rules import Policy, TriageRule
from keyturn.gateway.policy.suggesting import LEAST, Suggestion, suggest
from keyturn.gateway.policy.untyped import untyped_arguments
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object
from keyturn.gateway.validation_errors import did_you_mean, sentence

_COLOURS = {
    Tier.AUTO: typer.colors.GREEN,
    Tier.NOTIFY: typer.colors.GREEN,
    Tier.APPROVE: typer.colors.YELLOW,
    Tier.ESCALATE: typer.colors.MAGENTA,
    Tier.DENY: typer.colors.RED,
}


def explanation_rows(
    policy: Policy, evaluation: Evaluation, when: datetime | None
) -> Iterator[tuple[str, str]]:
    """Yield label and text for each part of an evaluation.

    Args:
        policy: the evaluated policy.
        evaluation: the evaluation of the call.
        when: the time of the evaluation; None omits absolute times.
    """
    yield "tier", _tier(evaluation.tier)
    for reason in evaluation.reasons:
        yield "because", reason
    if evaluation.effect_class is not None:
        yield "effect", evaluation.effect_class
    for rule in evaluation.fired:
        yield "rule", _rule(rule)
    if evaluation.triage is not None:
        yield "triage", _triage(evaluation.triage)
    if evaluation.tier.needs_people:
        yield from _of_people(evaluation, when)
        yield from _reach_rows(policy, evaluation, when or datetime.now(UTC))
    if evaluation.tier.needs_people or evaluation.tier is Tier.NOTIFY:
        yield "where", evaluation.channel
        if evaluation.description:
            yield "card", printable(evaluation.description)
        if evaluation.redact:
            yield "hidden", ", ".join(evaluation.redact)


def _of_people(
    evaluation: Evaluation, when: datetime | None
) -> Iterator[tuple[str, str]]:
    yield "who", _who(evaluation.requirement)
    yield "may", ", ".join(evaluation.allow)
    yield "within", f"{_time(evaluation.ttl_ms, when)}, then it expires"
    if evaluation.remind_at_ms:
        yield "reminds", f"after {_time(evaluation.remind_at_ms, when)}"
    if evaluation.escalate_at_ms:
        after = _time(evaluation.escalate_at_ms, when)
        yield "escalates", f"to {evaluation.escalate_to} after {after}"


def replay_lines(found: Sequence[Replayed]) -> Iterator[str]:
    """Yield lines that describe the changes."""
    changed = [one for one in found if one.is_changed]
    for one in changed:
        at = datetime.fromtimestamp(one.at_ms / 1000, UTC)
        who = f"{printable(one.agent) or '-'}  {_change(one)[0]}"
        yield f"{at:%Y-%m-%d %H:%M} UTC  {who}  {_change(one)[1]}"
        for reason in one.reasons:
            yield f"    {reason}"
        if one.lacking:
            more = " and ".join(
                f"{n} more from {role}" for role, n in one.lacking.items()
            )
            yield f"    The original approvals would not be enough: {more}."
    yield from _by_rule(changed)
    raised = sum(one.is_raised for one in changed)
    yield (
        f"{len(found)} calls: {raised} would need more, {len(changed) - raised} would "
        f"need less, {len(found) - len(changed)} are unchanged."
    )
    # Arguments are stored for a limited time, and an export may omit them.
    bare = sum(not one.is_complete for one in found)
    if bare:
        yield (
            f"{bare} of them have no arguments in the export, so for these only the "
            "listed tier was compared."
        )


def _by_rule(changed: Sequence[Replayed]) -> Iterator[str]:
    """Yield the number of changes for each tool and reason, the most frequent first."""
    if not changed:
        return
    # The last reason decides the tier.
    rules = Counter((*_change(one), "".join(one.reasons[-1:])) for one in changed)
    yield "By tool and rule:"
    for (tool, change, reason), count in rules.most_common():
        yield f"{count:>7}  {tool}  {change}  {reason}"


def _change(one: Replayed) -> tuple[str, str]:
    return printable(one.tool), f"{_tier(one.was)} → {_tier(one.now)}"


def _rule(rule: FiredRule) -> str:
    # Values are arguments of the call: untrusted, also in a terminal.
    seen = ", ".join(f"{name} = {printable(text)}" for name, text in rule.values)
    return f"{rule.when}{f'   ({seen})' if seen else ''}"


def _triage(rule: TriageRule) -> str:
    most = "refuse it" if rule.may_deny else "raise it"
    return f"a model may {most}, within {rule.timeout.total_seconds():.0f} s"


def _tier(tier: Tier) -> str:
    return typer.style(tier.value, fg=_COLOURS[tier])


def _time(span_ms: int, when: datetime | None) -> str:
    if when is None:
        return _span(span_ms)
    moment = when + timedelta(milliseconds=span_ms)
    return f"{_span(span_ms)} (at {moment:%Y-%m-%d %H:%M:%S} UTC)"


def _span(span_ms: int) -> str:
    """Return a time as a policy writes it, such as ``1h 30m``, without milliseconds."""
    left, parts = span_ms // 1000, list[str]()
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def _who(requirement: Requirement) -> str:
    # A role without people cannot be asked.
    held = [role for role in requirement.roles if role.users or role.usergroups]
    if not held:
        return "nobody: no reviewers are configured, so it can only expire"
    count = tally(requirement, (), "")
    people = "one person" if count.need == 1 else f"{count.need} people"
    parts = [f"{number} {names}" for names, number in count.lacking.items()]
    # If each vote is bound to a role, the roles make the whole sentence.
    if sum(count.lacking.values()) == count.need > 1:
        people = f"{people}, {' and '.join(parts)}, out"
        parts = []
    # Fewer people than votes: one person may have two of the roles.
    elif sum(count.lacking.values()) > count.need:
        people = f"{' and '.join(parts)}, who may be the same people, out"
        parts = []
    names = " or ".join(
        f"{role.name} ({', '.join((*role.usergroups, *role.users))})" for role in held
    )
    most = [f"at least {part}" for part in parts]
    maker = [] if requirement.editor_may_vote else ["editors cannot approve their edit"]
    return ", ".join([f"{people} of {names}", *most, *maker])


def suggestion_lines(found: Suggestion) -> list[str]:
    """Return the observation, the statistical bound, and the policy change."""
    more = ", with this rule first under 'raise':" if found.rule else "."
    rule = [f"    - {found.rule}"] if found.rule else []
    less = found.at_most_percent
    return [
        f"{printable(found.tool)}: {found.sentence}.",
        f"    Without review, people would have made {found.calls} fewer decisions.",
        f"    With 95 % confidence, less than {less} % of such calls need a person.",
        f"    In the policy: 'tier: notify'{more}",
        *rule,
    ]


def suggestion_document(found: Suggestion) -> JsonObject:
    """Return a suggestion as JSON."""
    more: JsonObject = {"at_most_percent": found.at_most_percent, "raise": found.rule}
    return {**found.model_dump(mode="json"), **more}


def too_few_people(policy: Policy) -> list[str]:
    """Return a sentence for every tool that has too few possible approvers."""
    # Listed tools come first. Each sentence appears once: the same tool may be listed
    # for several agents.
    found = [
        f"{_named(one.tool)} {lacks}"
        for one in sorted(reachable_requirements(policy), key=lambda one: not one.tool)
        if (lacks := _lacks(one.requirement, one.tier))
    ]
    return list(dict.fromkeys(found))


def uncalled(policy: Policy) -> list[str]:
    """Return a sentence for every 'escalate_to' of people who may not vote."""
    # One sentence a tier, since its people are listed once for all tools. A dict
    # preserves the order.
    found: dict[Tier, dict[str, None]] = {}
    for one in reachable_requirements(policy):
        rules = EffectiveRules(policy, one.agent, one.tool)
        name, _ = rules.escalation(one.tier, one.requirement)
        if rules.waiting(one.tier).escalate_to and not name:
            tool = repr(one.tool) if one.tool else "tools that are not listed"
            found.setdefault(one.tier, {})[tool] = None
    return [
        f"'tiers.{tier}.escalate_to' calls nobody for {', '.join(tools)}: none of "
        f"{policy.tiers.waiting(tier).escalate_to!r} is listed for the requirement; "
        "add them there, or name a channel."
        for tier, tools in found.items()
    ]


def without_receipts(policy: Policy) -> list[str]:
    """Return a sentence for every audience that gets calls without receipts."""
    return [
        f"Automatic calls of {tool!r} have no receipt for {rule.audience!r}. If it "
        "requires one, write 'tier: notify, notify: none'."
        for tool, rule in policy.tools.items()
        if rule.audience and EffectiveRules(policy, "", tool).tier()[0] is Tier.AUTO
    ]


def _unused(policy: Policy) -> list[str]:
    """Return a sentence for every unused requirement and rotation."""
    used = {rule.on_call for rule in policy.roles.values()}
    return [
        f"The requirement {name!r} is not used: no 'needs' names it."
        for name in unused(policy)
    ] + [
        f"The rotation {name!r} is not used: no role has it as 'on_call'."
        for name in policy.on_call
        if name not in used
    ]


def _named(tool: str) -> str:
    return repr(tool) if tool else "A tool that is not listed"


def _lacks(requirement: Requirement, tier: Tier) -> str:
    """Describe the people that a requirement lacks; group sizes are unknown."""
    for names, count in clauses(requirement).items():
        roles = [role for role in requirement.roles if role.name in names]
        people = {user for role in roles for user in role.users}
        # Only Slack has the size of a user group; `keyturn doctor` asks it.
        if any(role.usergroups for role in roles) or len(people) >= count:
            continue
        if not people:
            return "needs an approval, and no reviewer is set."
        return (
            f"needs {count} people at {tier}, and {len(people)} can be asked, so at "
            "that tier it can only be rejected or expire."
        )
    return ""


group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PolicyFile = Annotated[
    Path | None, argument("[FILE]", "Default: the policy of keyturn.yml.")
]


@group.command()
def check(ctx: typer.Context, file: PolicyFile = None, *, json: AsJson = False) -> None:
    """Check a policy, and name the line of each mistake.

    Examples:
      keyturn policy check             the policy that keyturn.yml names
      keyturn policy check policy.yml  this one; every mistake has its line
    """
    try:
        policy, document = command_context(ctx).loaded_policy(file)
    except BadPolicy as error:
        if json:
            rows = [{"place": one.location, "text": one.text} for one in error.problems]
            console.as_json({"ok": False, "problems": rows})
        else:
            for problem in error.problems:
                console.bad(str(problem))
        raise typer.Exit(1) from error
    # Notes, not errors: such a policy can be used, and the findings may be intended.
    untyped = [str(one) for one in untyped_arguments(policy, document)]
    people = [*too_few_people(policy), *uncalled(policy)]
    notes = [*people, *without_receipts(policy), *_unused(policy), *untyped]
    if json:
        found = {"ok": True, "policy_digest": policy.digest}
        console.as_json({**found, "tools": [*policy.tools], "notes": notes})
        return
    count = len(policy.tools)
    listed = "1 tool is" if count == 1 else f"{count} tools are"
    console.good(
        f"The policy is valid: {listed} listed, others have tier "
        f"{policy.defaults.tier}. {policy.digest}"
    )
    for line in notes:
        console.note(line)


@group.command()
def explain(
    ctx: typer.Context,
    call: Annotated[
        Path,
        typer.Option(help="JSON with tool, args, agent; '-' reads it from a pipe."),
    ],
    file: PolicyFile = None,
    *,
    at: Annotated[str, option("TIME", "ISO 8601 with its zone; default: now.")] = "",
    windows: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "Total of a window, this call included; default: this call alone.",
        ),
    ] = None,
    recent: Annotated[
        list[str] | None,
        option(
            "NAME=COUNT",
            "requests_10m (this call included; default: 1), failures_1h, "
            "rejections_in_row, same_done_24h or same_rejected_24h (default: 0).",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain how a policy evaluates one call: tier, people, fired rules.

    Examples:
      keyturn policy explain --call call.json  how this call is evaluated
      … --at 2026-07-04T02:30Z                 at that time
      … --windows refunds_24h=147              with this total
      … | keyturn policy explain --call -      the same from a pipe
    """
    policy = command_context(ctx).policy(file)
    proposed = _call(call)
    for kind, name, known in (
        ("tool", proposed.tool, policy.tool_names),
        ("agent", proposed.agent, policy.agents),
    ):
        if meant := did_you_mean(name, known):
            raise SettingsError(f"The policy names no {kind} {name!r}; {meant}")
    when = parse_time(at) if at else datetime.now(UTC)
    facts = facts_of(policy, proposed, when, windows=windows or (), recent=recent or ())
    evaluation = evaluate(
        policy,
        agent=proposed.agent,
        tool=proposed.tool,
        args=proposed.args,
        declared_schema=proposed.args_schema,
        facts=facts,
    )
    if json:
        # Freezes are in the store, which this command does not open.
        document = evaluation.model_dump(mode="json", exclude={"stopped"})
        evaluated = facts.model_dump(mode="json")
        console.as_json({**document, "facts": evaluated})
        return
    # Absolute times only for an explicit time: for 'now' they would differ in each run,
    # and two outputs could not be compared.
    for label, text in explanation_rows(policy, evaluation, when if at else None):
        typer.echo(f"{typer.style(f'{label:<9}', bold=True)} {text}")


@group.command(name="prove")
def prove_command(
    ctx: typer.Context,
    tool: Annotated[str, argument("TOOL", "Name of the tool.")],
    file: PolicyFile = None,
    *,
    tier: Annotated[
        Tier, typer.Option(help="Lowest tier that a call should have.")
    ] = Tier.AUTO,
    people: Annotated[
        int, typer.Option(min=0, help="Fewest people who should approve a call.")
    ] = 0,
    where: Annotated[str, option("CEL", "Only calls for which this is true.")] = "",
    schema: Annotated[
        Path | None, option("FILE", "Only calls that fit this JSON Schema.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Prove that each call of a tool has at least a tier or a number of people.

    A call that has less is printed. The proof tries one value of each range between the
    constants in conditions and schema. If a condition compares other things, a proof
    may be impossible, and the condition is printed. Exits with 1 unless all is proven.

    Examples:
      keyturn policy prove refund --tier approve    one person for each?
      … --people 2 --where "args.amount > 1000"     two for larger ones?
    """
    policy = command_context(ctx).policy(file)
    if tier is Tier.AUTO and not people:
        raise SettingsError("Give --tier or --people: what should each call have?")
    if meant := did_you_mean(tool, policy.tool_names):
        raise SettingsError(f"The policy names no tool {tool!r}; {meant}")
    agents = ["", *policy.agents]
    own, *narrower = (EffectiveRules(policy, name, tool).first for name in agents)
    text = console.read_text(schema, "the schema") if schema else ""
    given = parse_object(text) if text else None
    try:
        wrong = where and rule_problem(policy, tool, where, given or own.args_schema)
    except BadExpression as error:
        wrong = str(error)
    if wrong:
        raise SettingsError(f"--where {where!r}: {wrong}")

    def facts(name: str, args: JsonObject) -> Facts:
        return facts_of(policy, CallFile(tool=tool, args=args, agent=name), now)

    now = datetime.now(UTC)
    only = compiled(where or "true")
    proof = Claim(policy, tool, tier, people, only, given, facts).proof(agents)
    if proof.args is None and not proof.cases and not proof.unproven:
        raise SettingsError(
            "No call can be of this kind, so there is nothing to prove."
        )
    if json:
        console.as_json({"proven": proof.is_proven, **proof.model_dump(mode="json")})
    else:
        _print_proof(proof, tier, people)
        is_low = people <= 1 and tier.rank <= Tier.APPROVE.rank
        if is_low and any(one.allow_similar for one in (own, *narrower)):
            console.note("A standing approval runs such calls without another vote.")
    if not proof.is_proven:
        raise typer.Exit(1)


def _print_proof(proof: Proof, tier: Tier, people: int) -> None:
    if proof.args is not None:
        by = f" of agent {proof.agent!r}" if proof.agent else ""
        has = f"tier {proof.tier} and {_people(proof.people)}"
        console.bad(f"This call{by} has only {has}:")
        typer.echo(dumps(proof.args))
    for condition in proof.unproven if proof.args is None else ():
        console.bad(f"Not provable: {condition}")
    if proof.is_proven:
        claimed = [f"tier {tier}"] if tier is not Tier.AUTO else []
        claimed += [_people(people)] if people else []
        console.good(
            f"Proven: each such call has at least {' and '.join(claimed)} "
            f"(cases: {proof.cases})."
        )


def _people(count: int) -> str:
    return f"{count} people" if count != 1 else "1 person"


@group.command(name="replay")
def replay_command(
    ctx: typer.Context,
    audit: Annotated[
        Path, typer.Option(help="Audit export, JSON lines; '-' reads it from a pipe.")
    ],
    file: PolicyFile = None,
    *,
    json: AsJson = False,
) -> None:
    """Evaluate past calls with a policy, and list the changes.

    Examples:
      keyturn policy replay new.yml --audit export.jsonl  what would change
      … --json                                            the same for a program
    """
    # First, so that a mistake in the policy is reported before a long export is read.
    policy = command_context(ctx).policy(file)
    rows = _rows(audit)
    found = replay(policy, rows)
    if json:
        changed = [one.model_dump(mode="json") for one in found if one.is_changed]
        console.as_json(
            {
                "policy_digest": policy.digest,
                "calls": len(found),
                "without_arguments": sum(not one.is_complete for one in found),
                "changed": changed,
            }
        )
        return
    for line in replay_lines(found):
        typer.echo(line)


@group.command(name="suggest")
def suggest_command(
    audit: Annotated[
        Path, typer.Option(help="Audit export, JSON lines; '-' reads it from a pipe.")
    ],
    *,
    least: Annotated[
        int, typer.Option(min=1, help="Minimum number of calls for a suggestion.")
    ] = LEAST,
    json: AsJson = False,
) -> None:
    """Name calls that people always approved unchanged.

    Examples:
      keyturn policy suggest --audit export.jsonl  calls to review less often
      … --least 50                                 only of 50 calls or more
    """
    rows = _rows(audit)
    found = suggest(rows, least=least)
    if json:
        console.as_json([suggestion_document(one) for one in found])
        return
    for one in found:
        for line in suggestion_lines(one):
            typer.echo(line)
    if len(found) > 1:
        calls = sum(one.calls for one in found)
        typer.echo(f"All tools together: {calls} fewer decisions.")
    if not found:
        console.note(f"No tool has at least {least} calls that were always approved.")


def _rows(audit: Path) -> list[Row]:
    text = console.read_text(audit, "the audit export")
    return [*read_export(text.split("\n"), str(audit), Row)]


def _call(path: Path) -> CallFile:
    text = console.read_text(
        path, "the call", hint="To give the call itself, pipe it to --call -."
    )
    try:
        return CallFile.model_validate(parse_object(text))
    except BadJson as error:
        raise SettingsError(f"{str(path)!r}: {error}") from error
    except ValidationError as error:
        problem = sentence(error.errors()[0], CallFile)
        raise SettingsError(f"{str(path)!r}: {problem}") from error


_HOW = {Notify.MENTION: "a mention of", Notify.DM: "a direct message to"}


def _reach_rows(
    policy: Policy, evaluation: Evaluation, now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield the recipients of a call at this moment, a row for each role.

    Roles of ``escalate_to`` are notified later, and have a separate row.
    """
    later = {role.name for role in evaluation.escalate_roles}
    # If the requirement has no other roles, those are notified from the beginning.
    roles = [role for role in evaluation.requirement.roles if role.name not in later]
    for role in roles or evaluation.requirement.roles:
        if role.users or role.usergroups:
            yield "reaches", f"{role.name}: {_how(policy, role, evaluation, now)}"


def _how(policy: Policy, role: Role, evaluation: Evaluation, now: datetime) -> str:
    if role.notify is Notify.NONE:
        return "nobody; they find the card in the channel and on the Home tab"
    # None for people who are listed by their ids: they have no role.
    rule = policy.roles.get(role.name)
    whom = ", ".join((*role.usergroups, *role.users))
    turn = _turn(policy, rule.on_call if rule else None, now)
    said = f"{_HOW[role.notify]} {turn or whom}"
    expires = now + timedelta(milliseconds=evaluation.ttl_ms)
    if rule is None or rule.quiet is None:
        return said
    begin = asked_from(rule.quiet, evaluation.tier, now=now, expires=expires)
    if begin is None:
        return said
    # A call that is not urgent by the role's setting would expire unseen; the author of
    # the policy should see that.
    if begin >= expires:
        return f"nobody: it expires before {_local(begin, rule.quiet.zone)}"
    return f"{said}, from {_local(begin, rule.quiet.zone)}"


def _turn(policy: Policy, name: str | None, now: datetime) -> str:
    """Return who is on call and until when, or ""."""
    rule = policy.on_call.get(name or "")
    turn = on_call.turn_at(rule, now) if rule else None
    if rule is None or turn is None:
        return ""
    until = _local(rule.begin(turn + 1), rule.zone)
    return f"{on_call.on_call(rule, now)}, on call until {until}"


def _local(moment: datetime, name: str) -> str:
    return f"{moment.astimezone(zone(name)):%Y-%m-%d %H:%M} {name}"
