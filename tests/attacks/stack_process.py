"""Run a whole stack (bot, gateway, worker, agent) in a process that kills itself.

Usage: stack_process.py STORE_URL CHECKPOINTS API_URL BOT_TOKEN SIGNING_SECRET

``SHOP_DIE`` names the point at which it kills itself; see `POINTS`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.bot.ingress import StoreNonces
from keyturn.gateway.config import SlackMode
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import LangGraphLocal
from keyturn.gateway.running import running
from keyturn.gateway.service.agents import AgentService
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.cards import CardStore
from keyturn.gateway.store.changing import Changes
from keyturn.gateway.store.outbox import Outbox
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.store_secrets import SECRETS

LEASE_MS = 1000 if os.environ.get(sample_tools.DIE) else 15_000
"""Short where the process dies, since others wait for its end. Long where it lives: a
busy machine may stop a process for a second, and that would put its call in doubt."""
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, reviewers: [U0ANA]}
tools:
  refund: {tier: approve}
"""

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[P, Awaitable[R]]


def dying(point: str, *, after: bool) -> Callable[[Method[P, R]], Method[P, R]]:
    """Return a decorator that may kill this process before or after a call."""

    def decorate(method: Method[P, R]) -> Method[P, R]:
        @functools.wraps(method)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            if not after:
                sample_tools.die_at(point)
            result = await method(*args, **kwargs)
            # Acknowledging nothing is no step: it has no more arguments than `self`.
            if after and (len(args) > 1 or kwargs):
                sample_tools.die_at(point)
            return result

        return wrapped

    return decorate


POINTS: dict[str, tuple[type, str, bool]] = {
    "seen": (StoreNonces, "is_first", True),
    # What changes of one step and of several have in common.
    "decided": (Changes, "_write", True),
    "posted": (CardStore, "posted", False),
    "shown": (CardStore, "shown", True),
    "acknowledged": (Outbox, "done", True),
    "claimed": (AgentService, "claim", True),
}
"""The point, the method that it stands beside, and whether after it."""


async def main(
    url: str, checkpoints: str, api_url: str, bot_token: str, secret: str
) -> None:
    """Work until SIGTERM."""
    for point, (owner, name, after) in POINTS.items():
        method: Any = getattr(owner, name)
        setattr(owner, name, dying(point, after=after)(method))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    rules = load_policy(POLICY, "policy.yml")
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    config = BotConfig(
        bot_token=bot_token,
        mode=SlackMode.HTTP,
        signing_secret=secret,
        api_url=api_url,
        port=0,
        agents=("shop",),
        default_agent="shop",
    )
    async with open_checkpoints(str(Path(checkpoints))) as saver:
        runner = LangGraphLocal(attached(sample_tools.graph(), saver))
        async with (
            running(store, lambda: rules, {"shop": runner}),
            SlackBot(config, ReviewService(store, lambda: rules)) as bot,
        ):
            sys.stdout.write(f"{bot.url}\n")
            sys.stdout.flush()
            await stop.wait()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
