"""Freeze an agent, a tool or everything (kill switch), lift it, list freezes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, By, argument, flag
from keyturn.cli.store_access import use_service
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.errors import KeyturnError, SettingsError
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.people.freezing import (
    FreezeService,
    misspelled,
    unknown_name,
)
from keyturn.gateway.store.limits.freezes import Freeze, FreezeScope, ScopeKind


class Stopped(StrEnum):
    """Scopes of a freeze, as Slack names them."""

    AGENT = "agent"
    TOOL = "tool"
    EVERYTHING = "everything"


Kind = Annotated[
    Stopped, argument("agent|tool|everything", "What: agent, tool or everything.")
]
Name = Annotated[
    str, typer.Argument(help="Name of the agent or the tool; none for everything.")
]


def freeze(
    ctx: typer.Context,
    kind: Kind,
    name: Name = "",
    *,
    reason: Annotated[str, typer.Option(help="Why; agents and people read it.")] = "",
    by: By = "",
    unlisted: Annotated[
        bool, flag("--unlisted", "Freeze it even if the policy does not list it.")
    ] = False,
) -> None:
    """Freeze an agent, a tool or everything, including approved calls.

    Examples:
      keyturn freeze tool process_refund --reason "…"  no refund starts
      keyturn freeze agent support                     no call of the agent
      keyturn freeze everything                        no call of any agent
    """
    scope = _scope(kind, name)
    meant = "" if unlisted else _unknown(ctx, scope, misspelled)
    if meant:
        raise SettingsError(f"{meant} To freeze it anyway, add --unlisted.")
    is_new = use_service(
        ctx,
        FreezeService,
        lambda one: one.freeze(scope, by, reason, gesture=Gesture.CLI),
    )
    if is_new:
        console.good(f"{_named(scope)} is frozen: even approved calls do not start.")
        if unknown := _unknown(ctx, scope, unknown_name):
            console.note(unknown)
    else:
        console.note(f"{_named(scope)} is frozen already; nothing changed.")


def unfreeze(
    ctx: typer.Context,
    kind: Kind,
    name: Name = "",
    *,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    by: By = "",
) -> None:
    """End a freeze; for an agent this also ends its pause.

    Examples:
      keyturn unfreeze tool process_refund  refunds run again
      keyturn unfreeze agent support        also ends its pause after rejections
    """
    scope = _scope(kind, name)
    is_lifted = use_service(
        ctx,
        FreezeService,
        lambda one: one.unfreeze(scope, by, reason, gesture=Gesture.CLI),
    )
    if is_lifted:
        console.good(f"{_named(scope)} may run again.")
    elif meant := _unknown(ctx, scope, misspelled):
        raise SettingsError(meant)
    else:
        console.note(f"{_named(scope)} was not frozen; nothing changed.")


def frozen(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List freezes and pauses, with author, time and reason.

    Examples:
      keyturn frozen         every freeze, with its author and reason
      keyturn frozen --json  the same for a machine
    """
    found = use_service(ctx, FreezeService, FreezeService.frozen)
    if json:
        console.as_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        console.bad(_line(one))
    if not found:
        console.good("Nothing is frozen, and no agent is paused.")


def _line(freeze: Freeze) -> str:
    word = "paused" if freeze.is_pause else "frozen"
    reason = freeze.reason or "no reason was given"
    # Untrusted text: an agent names its tools, a Slack user writes the reason.
    scope = str(freeze.scope) if freeze.scope.name else Stopped.EVERYTHING.value
    what, who, why = map(console.printable, (scope, freeze.by, reason))
    return f"{what}: {word} by {who} since {console.utc(freeze.at_ms)}: {why}"


def _named(scope: FreezeScope) -> str:
    return f"The {scope.kind} {scope.name!r}" if scope.name else "Everything"


def _scope(what: Stopped, name: str) -> FreezeScope:
    if what is not Stopped.EVERYTHING:
        if not name:
            raise SettingsError(f"Which {what}? Write its name after '{what}'.")
        return FreezeScope(kind=ScopeKind(what), name=name)
    # Not ignored: the user meant one name, and would otherwise stop everything.
    if name:
        raise SettingsError(
            f"'everything' takes no name, but {name!r} was given. For one agent or "
            "tool, write 'agent' or 'tool' before the name."
        )
    return FreezeScope(kind=ScopeKind.TENANT)


def _unknown(
    ctx: typer.Context,
    scope: FreezeScope,
    said: Callable[[Policy, Collection[str], FreezeScope], str],
) -> str:
    """Return a message about a name that is not in the policy, or ""."""
    try:
        command = command_context(ctx)
        policy, agents = command.policy(), command.settings().agents
    except KeyturnError:
        # A broken policy must not prevent a freeze.
        return ""
    return said(policy, agents, scope)
