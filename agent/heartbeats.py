"""Keep the claim of a running call alive, and know when it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager

from twokey.agent import bridge
from twokey.agent.bridge import Shell, ask_with_retries
from twokey.gateway.clock import now_s
from twokey.gateway.errors import ThreadUnavailable, TwokeyError
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.wire import Claimed

logger = logging.getLogger(__name__)


async def stands(
    item_id: str, claimed: Claimed, gateway: Gateway, shell: Shell, asked_s: float
) -> bool:
    """Return whether a claim that was just granted is still ours.

    This process may have been paused since it asked, or its event loop held up by
    another tool, and the claim have ended: then people are asked what became of it, and
    may let another attempt run.

    Raises:
        ThreadUnavailable: when the gateway does not say; nothing ran.
    """
    if now_s() - asked_s < claimed.lease_s / 2:
        return True
    try:
        is_ours = await ask_with_retries(
            shell, lambda: gateway.heartbeat(item_id, claimed.fence)
        )
    except TwokeyError as error:
        raise ThreadUnavailable(
            f"The gateway did not say whether {item_id!r} may still run, so nothing "
            "ran; resume the thread again when it is back."
        ) from error
    if not is_ours:
        logger.warning("execution.claim_lost item=%s", item_id)
    return is_ours


@contextmanager
def heartbeats(item_id: str, claimed: Claimed, gateway: Gateway) -> Generator[None]:
    """Keep a claim alive while the block runs."""
    beats = bridge.spawn(_send(item_id, claimed, gateway))
    try:
        yield
    finally:
        beats.cancel()


async def _send(item_id: str, claimed: Claimed, gateway: Gateway) -> None:
    # Two beats before the lease ends, so that one of them may fail.
    pause = max(claimed.lease_s / 3, 0.05)
    while True:
        await asyncio.sleep(pause)
        try:
            is_ours = await gateway.heartbeat(item_id, claimed.fence)
        except (TwokeyError, OSError):
            # Not given up: the gateway may be back before the lease ends.
            logger.warning("execution.heartbeat_failed item=%s", item_id)
            continue
        if not is_ours:
            # The gateway has put the call in doubt, but a running tool cannot be
            # stopped. Its result is still recorded, as a late report.
            logger.warning("execution.claim_lost item=%s", item_id)
            return
