"""Check a policy, and explain what it says of a call."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field, ValidationError

from gateway.approvals.record import Demand, Record, Role
from gateway.approvals.strict_json import JsonObject, parse_object
from gateway.commands import console
from gateway.commands.session import session_of
from gateway.documents import sentence
from gateway.errors import BadJson, SettingsError
from gateway.policy.evaluate import Ruling, evaluate
from gateway.policy.load import BadPolicy
from gateway.policy.rules import Policy

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PolicyFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Default: the policy of twokey.yml."),
]


class CallFile(Record):
    """The shape of ``--call``: one call as an agent would propose it."""

    tool: str
    args: JsonObject = Field(default_factory=dict)
    agent: str = ""
    args_schema: JsonObject | None = None


@app.command(
    epilog=console.examples(
        ("twokey policy check", "the policy that twokey.yml names"),
        ("twokey policy check policy.yml", "this one; every mistake has its line"),
    )
)
def check(ctx: typer.Context, file: PolicyFile = None) -> None:
    """Say whether a policy can be used, or where it is wrong."""
    try:
        policy = session_of(ctx).policy(file)
    except BadPolicy as error:
        for problem in error.problems:
            console.bad(str(problem))
        raise typer.Exit(1) from error
    default = policy.defaults.tier
    console.good(
        f"The policy is good: {len(policy.tools)} tools are listed, any other is "
        f"{default}. {policy.digest}"
    )
    for tool in _without_reviewers(policy):
        console.note(f"{tool} needs people, and nobody is set who could approve it.")


@app.command(
    epilog=console.examples(
        ("twokey policy explain --call call.json", "what would happen to this call"),
        ("… | twokey policy explain --call -", "the same from a pipe"),
    )
)
def explain(
    ctx: typer.Context,
    call: Annotated[
        Path,
        typer.Option(help="JSON with tool, args, agent; '-' reads it from a pipe."),
    ],
    file: PolicyFile = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a policy asks of one call, and why."""
    policy = session_of(ctx).policy(file)
    proposed = _call(call)
    ruling = evaluate(
        policy,
        agent=proposed.agent,
        tool=proposed.tool,
        args=proposed.args,
        declared_schema=proposed.args_schema,
    )
    if json:
        document = ruling.model_dump(mode="json")
        console.as_json({**document, "policy_digest": policy.digest})
    else:
        for label, text in _explained(ruling):
            typer.echo(f"{typer.style(f'{label:<9}', bold=True)} {text}")


def _call(path: Path) -> CallFile:
    text = console.read_text(path, "the call")
    try:
        return CallFile.model_validate(parse_object(text))
    except BadJson as error:
        raise SettingsError(f"{str(path)!r}: {error}") from error
    except ValidationError as error:
        problem = sentence(error.errors()[0], CallFile)
        raise SettingsError(f"{str(path)!r}: {problem}") from error


def _explained(ruling: Ruling) -> list[tuple[str, str]]:
    rows = [("tier", ruling.tier.value)]
    rows += [("because", reason) for reason in ruling.reasons]
    if not ruling.tier.needs_people:
        return rows
    ttl = timedelta(milliseconds=ruling.ttl_ms)
    return [
        *rows,
        ("who", _who(ruling.demand)),
        ("may", ", ".join(ruling.allow)),
        ("within", f"{ttl}, then it is refused"),
        ("where", ruling.channel),
        *([("card", ruling.description)] if ruling.description else []),
        *([("hidden", ", ".join(ruling.redact))] if ruling.redact else []),
    ]


def _who(demand: Demand) -> str:
    held = [role for role in demand.roles if role.users or role.usergroups]
    if not held:
        return "nobody: no reviewers are set, so it can only expire"
    people = "one person" if demand.approvals == 1 else f"{demand.approvals} people"
    names = " or ".join(_holders(role) for role in held)
    most = [f"at least {count} {role}" for role, count in demand.at_least.items()]
    return ", ".join([f"{people} of {names}", *most])


def _holders(role: Role) -> str:
    return f"{role.name} ({', '.join((*role.usergroups, *role.users))})"


def _without_reviewers(policy: Policy) -> list[str]:
    agents = ["", *policy.agents]
    names = [*policy.tools, *(t for a in policy.agents.values() for t in a.tools)]
    found = [
        f"{tool!r}" if tool else "A tool that is not listed"
        for tool in (*dict.fromkeys(names), "")
        for ruling in (
            evaluate(policy, agent=agent, tool=tool, args={}) for agent in agents
        )
        if ruling.tier.needs_people and not _holds_anybody(ruling.demand)
    ]
    return list(dict.fromkeys(found))


def _holds_anybody(demand: Demand) -> bool:
    return any(role.users or role.usergroups for role in demand.roles)
