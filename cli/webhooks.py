"""List and test webhooks, and show their secrets.

A webhook notifies a program that a thread of its agent has a decision. Targets are in
the settings ('webhooks.targets'); no API key can add one. See docs/webhooks.md.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated

import typer

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, argument
from keyturn.cli.store_access import use_store
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service_settings import WebhookTarget
from keyturn.gateway.store.http.webhooks import ReceiverState, receiver_state
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import TEST, News, shown, webhook_secret
from keyturn.gateway.webhooks import Answer, Delivery, Poster, send

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, argument("NAME", "Name of a target in the settings.")]


@group.command("list")
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the targets, with the state of their recent deliveries.

    Examples:
      keyturn webhooks list         every target, with its recent deliveries
      keyturn webhooks list --json  the same for a machine
    """
    settings = command_context(ctx).settings()

    async def read(store: Store, tenant: str) -> dict[str, ReceiverState]:
        return {
            name: await receiver_state(store, tenant, name)
            for name in settings.webhooks.targets
        }

    found = use_store(ctx, read, makes=True)
    console.listing(
        [
            _row(name, settings.webhooks.targets[name], one)
            for name, one in found.items()
        ],
        json=json,
        nothing="There is no webhook; docs/webhooks.md shows how to add one.",
        is_bad=lambda row: row["failing_since"],
    )


@group.command()
def secret(
    ctx: typer.Context,
    name: Name,
    *,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Which of its secrets; default: the one in use."),
    ] = None,
) -> None:
    """Print the secret of a target (whsec_…).

    The receiving program verifies messages with it. It is derived from the secret of
    this installation, and not stored. docs/webhooks.md describes how to replace it.

    Examples:
      keyturn webhooks secret billing-app             for the program that receives
      keyturn webhooks secret billing-app --number 2  the next one
    """
    settings = command_context(ctx).settings()
    target = _target(settings, name)
    found = webhook_secret(
        settings.secret_keys()[0], settings.tenant, name, number or target.secrets[0]
    )
    typer.echo(shown(found))


@group.command()
def test(ctx: typer.Context, name: Name) -> None:
    """Send one test message, and report the response.

    Its type is webhook.test; the program has to answer with a status from 200 to 299.

    Examples:
      keyturn webhooks test billing-app  send one message now
    """
    settings = command_context(ctx).settings()
    target = _target(settings, name)

    async def sent(store: Store, _: str) -> Answer:
        now_ms = await store.conn.now_ms("")
        id_ = f"msg_{secrets.token_hex(16)}"
        message = Delivery(id_, TEST, News(), now_ms)
        poster = Poster(settings.webhooks)
        try:
            return await send(settings, name, message, poster, now_ms)
        finally:
            await poster.close()

    answer = use_store(ctx, sent, makes=True)
    if answer.error:
        raise SettingsError(
            f"{name} did not accept the message: {answer.error}. It was sent to "
            f"{target.url!r}; this message is not sent again."
        )
    console.good(f"{name} accepted the message (status {answer.status}).")


def _target(settings: Settings, name: str) -> WebhookTarget:
    found = settings.webhooks.targets.get(name)
    if found is None:
        raise SettingsError(
            f"There is no webhook {name!r} in the settings ('webhooks.targets'); "
            "'keyturn webhooks list' shows the existing ones."
        )
    return found


def _at(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _row(name: str, target: WebhookTarget, one: ReceiverState) -> console.Row:
    return {
        "name": name,
        "url": target.url,
        "agents": [*target.agents],
        "last_ok_at": _at(one.ok_ms),
        "failing_since": _at(one.failing_ms),
        "error": one.error,
    }
