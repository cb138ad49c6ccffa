"""Keep the claim of a running call alive, and know when it has ended."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from twokey.agent import bridge
from twokey.agent.bridge import Shell, ask_with_retries
from twokey.gateway.clock import now_s
from twokey.gateway.errors import ThreadUnavailable, TwokeyError
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.wire import Claimed
from twokey.gateway.uncancelled import begun

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
    beats = _Beats(item_id, claimed.fence, claimed.lease_s, gateway)
    beats.send_later()
    try:
        yield
    finally:
        beats.is_over = True


class _Beats:
    """The heartbeats of one claim, sent from the background loop."""

    def __init__(
        self, item_id: str, fence: int, lease_s: float, gateway: Gateway
    ) -> None:
        self._item_id = item_id
        self._fence = fence
        # Two beats before the lease ends, so that one of them may fail.
        self._pause_s = max(lease_s / 3, 0.05)
        self._gateway = gateway
        self.is_over = False

    def send_later(self) -> None:
        bridge.call_later(self._pause_s, self._begin)

    def _begin(self) -> None:
        if not self.is_over:
            begun(self._send())

    async def _send(self) -> None:
        try:
            is_ours = await self._gateway.heartbeat(self._item_id, self._fence)
        except (TwokeyError, OSError):
            # Not given up: the gateway may be back before the lease ends.
            is_ours = None
        if self.is_over:
            return
        if is_ours is None:
            logger.warning("execution.heartbeat_failed item=%s", self._item_id)
        elif not is_ours:
            # The gateway has put the call in doubt, but a running tool cannot be
            # stopped. Its result is still recorded, as a late report.
            logger.warning("execution.claim_lost item=%s", self._item_id)
            return
        self.send_later()
