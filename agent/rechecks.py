"""Recheck functions: read the business state that an approval depends on.

A `recheck` takes the arguments of the call as keywords and returns JSON. It is called
when the call is submitted, and again right before the call would run. If it fails, the
call does not run: the current state may differ from the approved one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from keyturn.agent.bridge import PORT_TIMEOUT_S, Shell
from keyturn.gateway.errors import BadJson, StateUnknown, StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import digest, strict_json
from keyturn.gateway.protocol.digest import MAX_STATE_BYTES, BusinessState
from keyturn.gateway.protocol.strict_json import JsonObject

Recheck = Callable[..., Any]
"""A synchronous or asynchronous function: arguments as keywords in, JSON out."""

STATE_UNREADABLE = (
    "The state that this call depends on could not be read, so no approval was "
    "requested and it did not run. Tell the user; it can be tried again later."
)
STATE_MISSING = (
    "This call was submitted without the state that its tool depends on, so it did "
    "not run. If it is still wanted, make it again as a new call."
)

logger = logging.getLogger(__name__)


async def read(
    shell: Shell, recheck: Recheck, tool: str, args: JsonObject
) -> BusinessState:
    """Return the state for these arguments.

    A synchronous function runs in a thread. If it hangs, it blocks neither the event
    loop nor the conversation's thread for longer than `PORT_TIMEOUT_S`.

    Raises:
        StateUnknown: when it raises, takes longer, or does not return small JSON.
    """

    async def called() -> BusinessState:
        try:
            return _validated(await _value(recheck, args))
        except any_failure() as error:
            # The application's function may raise anything: the state is unknown.
            log_failure(logger, error, "recheck.failed tool=%s", tool)
            raise StateUnknown(
                f"The state that {tool!r} depends on could not be read "
                f"({type(error).__name__}), so the call did not run."
            ) from error

    try:
        return await shell.ask(called)
    except StoreUnavailable as error:
        raise StateUnknown(
            f"The state that {tool!r} depends on could not be read within "
            f"{PORT_TIMEOUT_S:.0f} s, so the call did not run."
        ) from error


async def _value(recheck: Recheck, args: JsonObject) -> object:
    if inspect.iscoroutinefunction(recheck):
        return await recheck(**args)
    returned = await asyncio.to_thread(recheck, **args)
    return await returned if inspect.isawaitable(returned) else returned


def _validated(value: object) -> BusinessState:
    found = strict_json.accept(value)
    # The state becomes part of the action that is hashed, stored and shown on the card.
    size = len(digest.canonical(found))
    if size > MAX_STATE_BYTES:
        raise BadJson(f"the state is {size} bytes, {MAX_STATE_BYTES} are allowed")
    return BusinessState(value=found)
