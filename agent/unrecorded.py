"""Report the end of an execution beside the run, until the gateway has it.

A store whose master is replaced is away for longer than an executor waits. Its process
lives and knows what the tool returned. Without a report the claim would end as a doubt,
and people would be asked whether the call ran.

A report counts however late it comes, and once: it carries the fence of its claim. A
process that dies meanwhile leaves the doubt.
"""

from __future__ import annotations

import asyncio
import logging

from twokey.agent import bridge
from twokey.gateway.clock import now_s
from twokey.gateway.errors import FINAL_ERRORS, KeyRefused, TwokeyError
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.records import Result

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 2.0
REPORT_FOR_S = 3600.0
"""How long a result is kept for its report; people can say the same meanwhile."""

logger = logging.getLogger(__name__)


async def report(item_id: str, fence: int, result: Result, gateway: Gateway) -> None:
    """Report what an execution came to, until the gateway has answered."""
    pause, ends = FIRST_PAUSE_S, now_s() + REPORT_FOR_S
    while now_s() < ends:
        await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(bridge.PORT_TIMEOUT_S):
                is_ours = await gateway.finish(item_id, fence, result)
        except (TwokeyError, OSError) as error:
            if isinstance(error, FINAL_ERRORS) and not isinstance(error, KeyRefused):
                break
            pause = min(pause * 2, LONGEST_PAUSE_S)
            continue
        if is_ours:
            logger.info("execution.recorded item=%s", item_id)
        else:
            logger.warning("execution.finished_late item=%s", item_id)
        return
    logger.warning("execution.never_recorded item=%s", item_id)
