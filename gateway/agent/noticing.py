"""Tell the gateway how a call ended that ran unasked.

A notice says how its calls ended. Of a call that no notice shows only a failure is
told, which counts among the failures of its agent: one that succeeds costs nothing.

The agent does not depend on this: when the gateway does not answer, the notice goes on
saying that no result is known, the failure is not counted, and the agent goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from langgraph.errors import GraphBubbleUp, ParentCommand, is_invalid_resume

from gateway.agent import words
from gateway.agent.bridge import Shell
from gateway.agent.execution import HANDED_OVER
from gateway.agent.port import Gateway
from gateway.approvals.record import Result
from gateway.errors import TwokeyError
from gateway.wire import CallEnd, TurnRef, Verdict

logger = logging.getLogger(__name__)
R = TypeVar("R")


async def watched(
    run: Callable[[], Awaitable[R]],
    sum_up: Callable[[R], Result],
    *,
    ref: TurnRef,
    verdict: Verdict,
    gateway: Callable[[], Gateway],
    shell: Shell,
) -> R:
    """Run a call that needs nobody, and tell its end.

    Whatever it raises is raised on. A pause inside it is no end.
    """

    async def tell(result: Result) -> None:
        if result.ok and not verdict.notice:
            return
        end = CallEnd(
            notice=verdict.notice,
            ref=ref,
            tool=verdict.tool,
            tool_call_id=verdict.tool_call_id,
            result=result.with_(payload=""),
        )
        try:
            there = gateway()
            await shell.ask(lambda: there.ended(end))
        except TwokeyError:
            logger.warning("notice.end_untold notice=%s", verdict.notice)

    try:
        result = await run()
    except ParentCommand:
        # Not a pause: the tool is done and hands over to a graph around this one.
        await tell(HANDED_OVER)
        raise
    except GraphBubbleUp:
        raise
    except Exception as error:
        if not is_invalid_resume(error):
            await tell(Result(ok=False, summary=words.failed(error)))
        raise
    await tell(sum_up(result))
    return result
