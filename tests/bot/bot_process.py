"""Run a bot in a separate process, which kills itself after a number of decisions.

Usage: bot_process.py STORE_URL API_URL TOKEN SIGNING_SECRET POLICY_FILE DECISIONS

It prints its request URL. With 0 decisions it lives until SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.gateway.approvals.decisions import GestureOutcome
from keyturn.gateway.config import SlackMode
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store
from tests.store_secrets import SEAL_KEY, SECRETS


class Dying(ReviewService):
    """Makes a number of decisions, and is killed before the last reply."""

    left = 0

    async def decide_gesture(self, *given: Any, **named: Any) -> GestureOutcome:
        """Decide normally; the last decision is written, but not answered."""
        outcome = await super().decide_gesture(*given, **named)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome


async def work(
    policy: Policy, store_url: str, api_url: str, token: str, secret: str, left: str
) -> None:
    """Serve Slack until SIGTERM, or until the chosen death."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = Store(store_url, secrets=SECRETS, lease_ms=2000)
    service = Dying(store, lambda: policy)
    service.left = int(left)
    config = BotConfig(
        bot_token=token,
        mode=SlackMode.HTTP,
        signing_secret=secret,
        api_url=api_url,
        seal_key=SEAL_KEY,
        port=0,
        agents=("support",),
        default_agent="support",
    )
    async with SlackBot(config, service) as bot:
        sys.stdout.write(f"{bot.url}\n")
        await stop.wait()
    await store.close()


if __name__ == "__main__":
    store_at, slack_at, bot_token, signing_secret, file, decisions = sys.argv[1:]
    rules = load_policy(Path(file).read_text("utf-8"), file)
    asyncio.run(work(rules, store_at, slack_at, bot_token, signing_secret, decisions))
