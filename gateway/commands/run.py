"""Run the product: everything in one process, or only its Slack or its agents' side."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bot.app import SlackBot
from gateway.commands import console
from gateway.commands.demo_world import REQUESTER, open_world
from gateway.commands.house import bot_config, open_house
from gateway.commands.rehearsal import furnish, holders
from gateway.commands.session import Session, session_of
from gateway.commands.stopping import until_stopped
from gateway.config import DEFAULT_FILE, Settings
from gateway.embed import Twokey
from gateway.logs import write_logs
from gateway.policy_file import PolicyFile, followed
from gateway.service.reviews import ReviewService
from gateway.store.serving import open_store

EXAMPLES = console.examples(
    ("twokey run", "gateway, agents and bot in one process"),
    ("twokey run --sandbox", "the same beside a local Slack with a web page"),
    ("twokey gateway", "only the agents' side; start as many as you like"),
    ("twokey bot", "only the Slack side; two or more take over from each other"),
)

InsecureDev = Annotated[
    bool,
    typer.Option(
        "--insecure-dev",
        help="Accept a store that would lose acknowledged decisions.",
    ),
]


PAGE_PORT = 8765


def run(
    ctx: typer.Context,
    *,
    in_sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="With a local Slack and its page; needs no account."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=console.LAST_PORT,
            help="Port of the sandbox's page; 0: any free.",
        ),
    ] = PAGE_PORT,
    insecure_dev: InsecureDev = False,
) -> None:
    """Run gateway, agents and bot in one process until it is stopped.

    With --sandbox, a local Slack takes the place of the real one: everybody and every
    channel that the policy names is there, and a link to its page is printed. What
    happens there is kept apart, in 'sandbox' under the data folder.
    """
    session = session_of(ctx)
    if in_sandbox:
        asyncio.run(_rehearse(session, port))
    else:
        asyncio.run(_run(session, insecure_dev=insecure_dev))


def gateway(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the agents' side: workers, expiries and your agents."""
    asyncio.run(_gateway(session_of(ctx), insecure_dev=insecure_dev))


def bot(ctx: typer.Context, *, insecure_dev: InsecureDev = False) -> None:
    """Run the Slack side: cards, clicks, modals."""
    asyncio.run(_bot(session_of(ctx), insecure_dev=insecure_dev))


def add_to(app: typer.Typer) -> None:
    """Add what is in here to the command ``twokey``."""
    app.command(epilog=EXAMPLES)(run)
    app.command(epilog=EXAMPLES)(gateway)
    app.command(epilog=EXAMPLES)(bot)


def _begin_logs(session: Session, settings: Settings, *, insecure_dev: bool) -> None:
    """Write logs; the words of an agent's errors only where a developer reads them."""
    host = urlsplit(settings.slack.api_url).hostname
    is_sandbox = host in {"127.0.0.1", "::1", "localhost"}
    shows_errors = session.debug or insecure_dev or is_sandbox
    write_logs(settings.log, shows_errors=shows_errors)


async def _run(session: Session, *, insecure_dev: bool) -> None:
    settings = session.settings()
    _begin_logs(session, settings, insecure_dev=insecure_dev)
    async with open_house(settings, insecure_dev=insecure_dev) as house:
        console.good(f"Twokey runs in workspace {house.bot.team_id}.")
        agents = ", ".join(settings.agents) or "none in twokey.yml"
        console.good(f"Agents: {agents}. Ctrl+C stops it; approvals stay.")
        await until_stopped(house.twokey.reload, house.twokey.store)


async def _rehearse(session: Session, port: int) -> None:
    settings, policy = session.settings(), session.policy()
    write_logs(settings.log, shows_errors=True)
    async with open_world(
        session.config or DEFAULT_FILE,
        settings.data_dir / "sandbox",
        port=port,
        env=session.env,
        furnish=partial(furnish, policy=policy),
        suggestions=(),
    ) as world:
        url = f"{world.sandbox.url}/?user={REQUESTER}"
        agents = ", ".join(settings.agents) or "none in twokey.yml"
        console.good(f"A local Slack: {typer.style(url, bold=True)}")
        console.good(f"Agents: {agents}. You are Dan; ask with '@twokey ...'.")
        for line in holders(policy, world.sandbox.workspace):
            console.note(line)
        console.note("Switch to one of them to decide. Ctrl+C stops everything.")
        await until_stopped(world.house.twokey.reload, world.house.twokey.store)


async def _gateway(session: Session, *, insecure_dev: bool) -> None:
    settings = session.settings()
    _begin_logs(session, settings, insecure_dev=insecure_dev)
    async with Twokey(settings, insecure_dev=insecure_dev) as twokey:
        console.good(f"The gateway runs for {', '.join(settings.agents) or 'nobody'}.")
        await until_stopped(twokey.reload, twokey.store)


async def _bot(session: Session, *, insecure_dev: bool) -> None:
    settings = session.settings()
    _begin_logs(session, settings, insecure_dev=insecure_dev)
    policy, tenant = PolicyFile(settings.policy), settings.tenant
    config = bot_config(settings)
    url = settings.redis_url.get_secret_value() if settings.redis_url else None
    async with open_store(url, settings.data_dir, insecure_dev=insecure_dev) as store:
        reviews = ReviewService(store, policy, tenant=tenant)
        async with (
            followed(policy, store, tenant=tenant),
            SlackBot(config, reviews) as slack_bot,
        ):
            console.good(f"The bot serves workspace {slack_bot.team_id}.")
            await until_stopped(policy.reload, store)
