"""List, test and repair webhooks, and show their secrets."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer
from pydantic import JsonValue

from twokey.cli import console
from twokey.cli.command_context import command_context
from twokey.cli.console import AsJson
from twokey.cli.examples import examples
from twokey.cli.store_access import open_configured
from twokey.gateway.config import Settings
from twokey.gateway.errors import SettingsError
from twokey.gateway.protocol.webhooks import TEST, News
from twokey.gateway.store.store import Store
from twokey.gateway.store.webhooks import Delivery, Standing, Taken, WebhookQueue
from twokey.gateway.trust.webhook_secrets import shown, webhook_secret
from twokey.gateway.webhook_settings import WebhookTarget
from twokey.gateway.webhooks.posting import Answer, Poster
from twokey.gateway.webhooks.sending import send

T = TypeVar("T")

ABOUT = """List, test and repair webhooks, and show their secrets.

A webhook tells a program that a thread of its agent has a decision. Targets are in the
settings ('webhooks.targets'); no API key can add one. See docs/webhooks.md.
"""

group = typer.Typer(help=ABOUT, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of a target in the settings.")
]


@group.command(
    "list",
    epilog=examples(
        ("twokey webhooks list", "every target, and how it did lately"),
        ("twokey webhooks list --json", "the same for a machine"),
    ),
)
def listed(ctx: typer.Context, *, json: AsJson = False) -> None:
    """List the targets, and how many messages wait or failed."""
    settings = command_context(ctx).settings()

    async def read(store: Store) -> dict[str, Standing]:
        return {
            name: await _queue(settings, store, name).standing()
            for name in settings.webhooks.targets
        }

    found = _ask(settings, read)
    if json:
        console.as_json(
            [
                _row(name, settings.webhooks.targets[name], one)
                for name, one in found.items()
            ]
        )
        return
    for name, one in found.items():
        say = console.bad if one.failing_ms is not None else console.good
        say(_line(name, settings.webhooks.targets[name], one))
    if not found:
        console.note("There is no webhook; docs/webhooks.md shows how to add one.")


@group.command(
    epilog=examples(
        ("twokey webhooks secret billing-app", "give it to the program that receives"),
        ("twokey webhooks secret billing-app --number 2", "the next one"),
    )
)
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

    The program that receives its messages verifies them with it. It is derived from the
    secret of this installation, and stored nowhere. docs/webhooks.md says how to
    replace it.
    """
    settings = command_context(ctx).settings()
    target = _target(settings, name)
    found = webhook_secret(
        settings.secret_keys()[0], settings.tenant, name, number or target.secrets[0]
    )
    typer.echo(shown(found))


@group.command(
    epilog=examples(("twokey webhooks test billing-app", "send one message now"))
)
def test(ctx: typer.Context, name: Name) -> None:
    """Send one test message, and say what came back.

    Its type is webhook.test; the program has to answer with a status from 200 to 299.
    """
    settings = command_context(ctx).settings()
    target = _target(settings, name)

    async def sent(store: Store) -> Answer:
        now_ms = await _queue(settings, store, name).now_ms()
        id_ = f"msg_{secrets.token_hex(16)}"
        delivery = Delivery(id=id_, kind=TEST, news=News(), at_ms=now_ms)
        poster = Poster(settings.webhooks)
        try:
            return await send(
                settings.secret_keys(),
                settings.tenant,
                name,
                target,
                delivery,
                poster,
                now_ms,
            )
        finally:
            await poster.close()

    answer = _ask(settings, sent)
    if answer.error:
        raise SettingsError(
            f"{name} did not take the message: {answer.error}. It was sent to "
            f"{target.url!r}; this message is not sent again."
        )
    console.good(f"{name} took the message (status {answer.status}).")


@group.command(
    epilog=examples(
        ("twokey webhooks failed billing-app", "what did not arrive, and why"),
    )
)
def failed(ctx: typer.Context, name: Name, *, json: AsJson = False) -> None:
    """List the messages that were given up, newest first.

    They are kept for 7 days, 1,000 of a target at most.
    """
    settings = command_context(ctx).settings()
    _target(settings, name)

    async def read(store: Store) -> list[Taken]:
        return [one async for one in _queue(settings, store, name).dead()]

    found = _ask(settings, read)
    if json:
        console.as_json([_message_row(one.delivery) for one in found])
        return
    for one in found:
        console.bad(_message_line(one.delivery))
    if not found:
        console.note(f"Nothing for {name} was given up.")


@group.command(
    epilog=examples(("twokey webhooks retry billing-app", "when it works again"))
)
def retry(ctx: typer.Context, name: Name) -> None:
    """Send the messages that were given up again.

    They are put into the queue; a gateway that runs sends them.
    """
    settings = command_context(ctx).settings()
    _target(settings, name)

    async def put(store: Store) -> int:
        queue, count = _queue(settings, store, name), 0
        async for one in queue.dead():
            fresh = one.delivery.with_(attempts=0, ends_ms=0)
            count += await queue.put(fresh, seen=one.stored) == "queued"
        return count

    count = _ask(settings, put)
    if count:
        console.good(f"Messages for {name} that are sent again: {count}.")
    else:
        console.note(f"Nothing for {name} was given up.")


def _ask(settings: Settings, ask: Callable[[Store], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with open_configured(settings, insecure_dev=True) as store:
            return await ask(store)

    return asyncio.run(asked())


def _queue(settings: Settings, store: Store, name: str) -> WebhookQueue:
    return WebhookQueue(store, tenant=settings.tenant, target=name)


def _target(settings: Settings, name: str) -> WebhookTarget:
    found = settings.webhooks.targets.get(name)
    if found is None:
        raise SettingsError(
            f"There is no webhook {name!r} in the settings ('webhooks.targets'); "
            "'twokey webhooks list' shows those there are."
        )
    return found


def _at(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _row(name: str, target: WebhookTarget, one: Standing) -> dict[str, JsonValue]:
    return {
        "name": name,
        "url": target.url,
        "agents": [*target.agents],
        "waiting": one.waiting,
        "failed": one.dead,
        "last_ok_at": _at(one.ok_ms),
        "failing_since": _at(one.failing_ms),
        "error": one.error,
    }


def _line(name: str, target: WebhookTarget, one: Standing) -> str:
    state = f"last message taken {_at(one.ok_ms)}" if one.ok_ms else "nothing sent yet"
    if one.failing_ms is not None:
        state = f"failing since {_at(one.failing_ms)} ({console.printable(one.error)})"
    agents = console.printable(", ".join(target.agents))
    return (
        f"{name} {target.url}: agents {agents}; {one.waiting} waiting, "
        f"{one.dead} given up; {state}"
    )


def _message_row(one: Delivery) -> dict[str, JsonValue]:
    return {
        "id": one.id,
        "type": one.kind,
        **one.news.model_dump(),
        "at": _at(one.at_ms),
        "attempts": one.attempts,
        "error": one.error,
    }


def _message_line(one: Delivery) -> str:
    of = console.printable(f"{one.news.agent}/{one.news.thread} {one.news.approval}")
    return (
        f"{one.id} {_at(one.at_ms)} {of}: {one.attempts} attempts, "
        f"{console.printable(one.error)}"
    )
