"""Diagnose the setup: what is missing or wrong, and how to fix it."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import typer
from pydantic import JsonValue

from twokey.cli import console
from twokey.cli.check import Check, State
from twokey.cli.checks import run_checks
from twokey.cli.command_context import CommandContext, command_context
from twokey.cli.examples import examples
from twokey.gateway.errors import SettingsError

EXAMPLES = examples(
    ("twokey doctor", "check everything; nothing is posted"),
    ("twokey doctor --post", "also post a test message to each channel"),
    ("twokey doctor --requester U0DAN", "who could approve what this person asks?"),
    ("twokey --config prod.yml doctor --json", "for a machine; exit code 1 if bad"),
)
_USER = re.compile(r"[UW][A-Z0-9]{2,30}", re.ASCII)
_PRINT = {
    State.GOOD: console.good,
    State.BAD: console.bad,
    State.SKIPPED: console.note,
}


def doctor(
    ctx: typer.Context,
    *,
    post: Annotated[
        bool, typer.Option("--post", help="Post a test message to each channel.")
    ] = False,
    requester: Annotated[
        str,
        typer.Option(
            metavar="USER",
            help="Slack user id: who could approve this person's requests?",
        ),
    ] = "",
    json: console.AsJson = False,
) -> None:
    """Check every part, and say what to do about what is not right."""
    # A name that no id is would be somebody who asks for nothing, and hide that the
    # person themselves is among the few who could approve.
    if requester and not _USER.fullmatch(requester):
        raise SettingsError(
            f"--requester {requester!r} is no Slack user id; write one such as U0DAN "
            "(in Slack: the person's profile, ⋮, Copy member ID)."
        )
    checks = asyncio.run(
        _examined(
            command_context(ctx), post=post, requester=requester, is_printed=not json
        )
    )
    is_bad = any(check.state is State.BAD for check in checks)
    if json:
        rows: list[JsonValue] = [
            {"name": check.name, "state": check.state, "text": check.text}
            for check in checks
        ]
        console.as_json({"ok": not is_bad, "checks": rows})
    if is_bad:
        raise typer.Exit(1)


async def _examined(
    command: CommandContext, *, post: bool, requester: str, is_printed: bool
) -> list[Check]:
    checks: list[Check] = []
    # Printed as each one ends: a policy of many people takes a request for each of
    # them, and a terminal that stays empty looks as if it hung.
    async for check in run_checks(command, post=post, requester=requester):
        checks.append(check)
        if is_printed:
            _PRINT[check.state](f"{check.name}: {check.text}")
    return checks
