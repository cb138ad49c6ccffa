"""Be a bot in a process of its own that says what it has precomputed.

Usage: precomputing_bot.py SETTINGS, a JSON object, see `tests.bot.several_bots`.
It prints the URL at which Slack reaches it, "precomputed APPROVAL", and for each click
that was tried by that "tried APPROVAL" and whether something was written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from twokey.bot import limits, user_cache
from twokey.bot.app import SlackBot
from twokey.bot.config import BotConfig
from twokey.gateway.approvals.decisions import Click
from twokey.gateway.config import PolicySource, SlackMode
from twokey.gateway.policy_file import PolicyFile, followed
from twokey.gateway.service import precomputing, reading_ahead
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store
from twokey.gateway.trust.keyring import Keyring

KEPT_S = 1800.0
"""How long is believed what Slack said of people."""


ANY = limits.Rate(60_000, 1_000)


class Telling(AsShownService):
    """Says what it precomputes, and what it approves by that."""

    def precompute(self, approval_id: str) -> None:
        """Precompute as ever."""
        super().precompute(approval_id)
        if (shown := self._shown(approval_id)) and shown.precomputations:
            sys.stdout.write(f"precomputed {approval_id} as={shown.precomputed_as}\n")

    async def approve(self, click: Click, *given: Any, **named: Any) -> bool:
        """Approve as ever."""
        is_written = await super().approve(click, *given, **named)
        sys.stdout.write(f"tried {click.approval} {is_written}\n")
        return is_written


def follow_clocks(file: Path) -> None:
    """Let the time of day, and the clock since the machine started, be ahead by files.

    Nothing that decides may read the first; asyncio reads another one.
    """
    of_day, since_start = time.time, time.clock_gettime  # noqa: TID251 - moved here

    def ahead_s(suffix: str) -> float:
        beside = file.with_suffix(suffix)
        return float(beside.read_text()) if beside.exists() else 0.0

    def clock_gettime(clock: int) -> float:
        is_moved = clock == time.CLOCK_BOOTTIME
        return since_start(clock) + (ahead_s(".boot") if is_moved else 0.0)

    time.clock_gettime = clock_gettime
    time.time = lambda: of_day() + ahead_s(".time")  # noqa: TID251 - likewise


async def work(told: dict[str, Any]) -> None:
    """Serve Slack until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    secrets = [bytes.fromhex(one) for one in told["secrets"]]
    store = Store(told["store"], secrets=secrets, lease_ms=2000, **told["shards"])
    store.keyring = Keyring(Path(told["keys"]))
    policy = PolicyFile(PolicySource(path=Path(told["policy"])))
    service = ReviewService(store, policy, tenant=told["tenant"])
    service.as_shown = Telling(store, policy, tenant=told["tenant"])
    for one in service.readings_ahead:
        vars(one)["_kept"] = service.as_shown
    config = BotConfig(
        bot_token=told["token"],
        mode=SlackMode.HTTP,
        signing_secret=told["signing_secret"],
        api_url=told["api_url"],
        seal_key=secrets[0],
        old_seal_keys=tuple(secrets[1:]),
        port=0,
        tenant=told["tenant"],
        agents=tuple(told["agents"]),
        default_agent=told["agents"][0],
    )
    async with (
        followed(policy, store, tenant=told["tenant"], every_s=0.1),
        SlackBot(config, service) as bot,
    ):
        sys.stdout.write(f"{bot.url}\n")
        await stop.wait()
    await store.close()


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    follow_clocks(Path(settings["clock"]))
    # Whoever draws a card keeps it; each of these bots is to read it, soon.
    reading_ahead.PAUSE_S = 0.05  # type: ignore[misc] # only here
    # On a busy machine a test takes longer than a minute.
    user_cache.KEPT_S = KEPT_S
    # The sandbox takes any number of posts, where it is told so.
    limits.RATES.update({limits.POST: ANY, limits.UPDATE: ANY})
    # What ends soon is precomputed as well, so that a test sees its end.
    precomputing._LEAST_MS = 0  # pyright: ignore[reportPrivateUsage] - likewise
    asyncio.run(work(settings))
