"""Be a worker in a process of its own, until SIGTERM, or a chosen death.

Usage: worker_process.py STORE_URL CHECKPOINTS LEASE_MS
``SHOP_DIE`` names where it kills itself: before_claim, claimed, inside, finished.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from gateway.approvals.record import Result
from gateway.resume.every_loop import EveryLoop
from gateway.store.store import Store
from gateway.wire import Claimed, ClaimReply, ClaimRequest
from tests.resume.house import open_house
from tests.resume.shop import die_at

_claim, _finish = EveryLoop.claim, EveryLoop.finish


async def claim(self: EveryLoop, request: ClaimRequest) -> ClaimReply:
    """Claim, and perhaps die before or after."""
    die_at("before_claim")
    reply = await _claim(self, request)
    if isinstance(reply, Claimed):
        die_at("claimed")
    return reply


async def finish(self: EveryLoop, item_id: str, fence: int, result: Result) -> bool:
    """Record a result, and perhaps die before the thread knows it."""
    is_ours = await _finish(self, item_id, fence, result)
    die_at("finished")
    return is_ours


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(url: str, checkpoints: str, lease_ms: int) -> None:
    """Work until SIGTERM."""
    EveryLoop.claim = claim  # type: ignore[method-assign]  # the process is the test's own
    EveryLoop.finish = finish  # type: ignore[method-assign]  # as above
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = Store(url, lease_ms=lease_ms)
    async with open_house(store, Path(checkpoints)) as house, house.working():
        _say("ready")
        await stop.wait()
    await store.close()
    _say("stopped")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
