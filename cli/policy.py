"""Check a policy, say what it asks, or try it on past calls."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue, ValidationError

from twokey.cli import console
from twokey.cli.command_context import command_context
from twokey.cli.console import AsJson
from twokey.cli.examples import examples
from twokey.cli.policy_inputs import CallFile, facts_of, parse_time
from twokey.cli.policy_output import (
    explanation_rows,
    replay_lines,
    suggestion_document,
    suggestion_lines,
)
from twokey.cli.policy_reach import reach_notes
from twokey.cli.policy_warnings import too_few_people, uncalled, unused_requirements
from twokey.gateway.errors import BadJson, SettingsError
from twokey.gateway.policy.evaluate import evaluate
from twokey.gateway.policy.load import BadPolicy
from twokey.gateway.policy.replay import Replayed, read_rows, replay
from twokey.gateway.policy.suggesting import LEAST, suggest
from twokey.gateway.policy.untyped import untyped_arguments
from twokey.gateway.protocol.strict_json import JsonObject, parse_object
from twokey.gateway.validation_errors import sentence

group = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

PolicyFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Default: the policy of twokey.yml."),
]


@group.command(
    epilog=examples(
        ("twokey policy check", "the policy that twokey.yml names"),
        ("twokey policy check policy.yml", "this one; every mistake has its line"),
    )
)
def check(ctx: typer.Context, file: PolicyFile = None, *, json: AsJson = False) -> None:
    """Check a policy, and name the line of each mistake."""
    try:
        policy, document = command_context(ctx).loaded_policy(file)
    except BadPolicy as error:
        if json:
            rows: list[JsonValue] = [
                {"place": one.location, "text": one.text} for one in error.problems
            ]
            console.as_json({"ok": False, "problems": rows})
        else:
            for problem in error.problems:
                console.bad(str(problem))
        raise typer.Exit(1) from error
    except SettingsError as error:
        if not json:
            raise
        place = str(file or "")
        unread: list[JsonValue] = [{"place": place, "text": str(error)}]
        console.as_json({"ok": False, "problems": unread})
        # 2 as for every mistake in files or settings; 1 means that the policy was read
        # and is wrong.
        raise typer.Exit(2) from error
    # Notes and no errors: such a policy can be used, and what they name may be meant.
    untyped = [str(one) for one in untyped_arguments(policy, document)]
    notes = [*too_few_people(policy), *uncalled(policy), *unused_requirements(policy)]
    notes += [*reach_notes(policy), *untyped]
    if json:
        found: JsonObject = {"ok": True, "policy_digest": policy.digest}
        found["tools"] = [*policy.tools]
        found["notes"] = [*notes]
        console.as_json(found)
        return
    count = len(policy.tools)
    listed = "1 tool is" if count == 1 else f"{count} tools are"
    console.good(
        f"The policy is good: {listed} listed, any other is {policy.defaults.tier}. "
        f"{policy.digest}"
    )
    for line in notes:
        console.note(line)


@group.command(
    epilog=examples(
        ("twokey policy explain --call call.json", "what would happen to this call"),
        ("… --at 2026-07-04T02:30Z", "at that time"),
        ("… --windows refunds_24h=147", "with this total, the call included"),
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
    at: Annotated[
        str, typer.Option(metavar="TIME", help="ISO 8601 with its zone; default: now.")
    ] = "",
    windows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Total of a window, this call included; default: this call alone.",
        ),
    ] = None,
    recent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COUNT",
            help="requests_10m (this call included; default: 1), failures_1h, "
            "rejections_in_row, same_done_24h or same_rejected_24h (default: 0).",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what a policy asks of one call, which rules fired, and why."""
    policy = command_context(ctx).policy(file)
    proposed = _call(call)
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
        # What is frozen is in the store, which this command does not open.
        document = evaluation.model_dump(mode="json", exclude={"stopped"})
        evaluated = facts.model_dump(mode="json")
        console.as_json({**document, "facts": evaluated})
        return
    # Times of the clock only for a time that was given: for 'now' they would differ at
    # each run, and two outputs could not be compared.
    for label, text in explanation_rows(policy, evaluation, when if at else None):
        typer.echo(f"{typer.style(f'{label:<9}', bold=True)} {text}")


@group.command(
    name="replay",
    epilog=examples(
        ("twokey policy replay new.yml --audit export.jsonl", "what would change"),
        ("… --json", "the same for a program"),
    ),
)
def replay_command(
    ctx: typer.Context,
    audit: Annotated[
        Path, typer.Option(help="Audit export, JSON lines; '-' reads it from a pipe.")
    ],
    file: PolicyFile = None,
    *,
    json: AsJson = False,
) -> None:
    """Evaluate past calls by a policy, and say what would have changed."""
    # First, so that a mistake in the policy is said before a long export is read.
    policy = command_context(ctx).policy(file)
    rows = read_rows(console.read_text(audit, "the audit export"), str(audit))
    found = replay(policy, rows)
    if json:
        console.as_json({"policy_digest": policy.digest, **_as_document(found)})
        return
    for line in replay_lines(found):
        typer.echo(line)


@group.command(
    name="suggest",
    epilog=examples(
        ("twokey policy suggest --audit export.jsonl", "where to ask people less"),
        ("… --least 50", "only of 50 calls or more"),
    ),
)
def suggest_command(
    audit: Annotated[
        Path, typer.Option(help="Audit export, JSON lines; '-' reads it from a pipe.")
    ],
    *,
    least: Annotated[
        int, typer.Option(min=1, help="Calls of which fewer say too little.")
    ] = LEAST,
    json: AsJson = False,
) -> None:
    """Name calls that people always approved unchanged."""
    rows = read_rows(console.read_text(audit, "the audit export"), str(audit))
    found = suggest(rows, least=least)
    if json:
        console.as_json([suggestion_document(one) for one in found])
        return
    for one in found:
        for line in suggestion_lines(one):
            typer.echo(line)
    if not found:
        console.note(f"Of no tool were {least} calls or more always approved.")


def _as_document(found: list[Replayed]) -> JsonObject:
    changed: list[JsonValue] = [
        one.model_dump(mode="json") for one in found if one.is_changed
    ]
    return {
        "calls": len(found),
        "without_arguments": sum(not one.is_complete for one in found),
        "changed": changed,
    }


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
