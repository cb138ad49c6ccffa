"""Run one gateway or one bot in a separate process, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.gateway.config import PolicySource, SlackMode
from keyturn.gateway.embed import running
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.setting_forms import AUDIT_KEPT
from keyturn.gateway.store.store import Store
from tests.chaos.agent import AGENT, EFFECTS, graph
from tests.store_secrets import SEAL_KEY, SECRETS


@dataclass(frozen=True)
class Settings:
    """Where everything is, as this process gets to it."""

    role: str
    log: str
    effects: str
    store: str
    checkpoints: str
    slack: str
    bot_token: str
    signing_secret: str
    policy: str
    port: int
    lease_ms: int
    audit_kept: timedelta = AUDIT_KEPT


async def _work(settings: Settings) -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = Store(settings.store, secrets=SECRETS, lease_ms=settings.lease_ms)
    store.keep_audit(settings.audit_kept, None)
    policy = PolicyFile(PolicySource(path=Path(settings.policy)))
    async with followed(policy, store, tenant="default"):
        if settings.role == "gateway":
            async with open_checkpoints(settings.checkpoints) as saver:
                runner = Runner(attached(graph(), saver))
                async with running(store, policy, Runners({AGENT: runner}, saver)):
                    await stop.wait()
        else:
            config = BotConfig(
                bot_token=settings.bot_token,
                mode=SlackMode.HTTP,
                signing_secret=settings.signing_secret,
                api_url=settings.slack,
                seal_keys=(SEAL_KEY,),
                port=settings.port,
                agents=(AGENT,),
            )
            async with SlackBot(config, ReviewService(store, policy)):
                await stop.wait()
    await store.close()


def main(settings: Settings) -> None:
    """Run the process; its output goes to its log."""
    log = os.open(settings.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ[EFFECTS] = settings.effects
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s"
    )
    asyncio.run(_work(settings))
