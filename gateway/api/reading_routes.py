"""Answer what agents and their owners read: approvals, the queue, events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from twokey.gateway.api.operations import Tenant, check_agents
from twokey.gateway.api.rate_limits import RateLimits
from twokey.gateway.api.refusals import Refusal
from twokey.gateway.errors import BadJson, StoreUnavailable
from twokey.gateway.protocol.approval_views import (
    MOST_OF_A_PAGE,
    PAGE,
    ApprovalPage,
    ApprovalView,
    EventPage,
)
from twokey.gateway.protocol.http_problems import MALFORMED, NOT_FOUND
from twokey.gateway.protocol.remote_runs import LONGEST_WAIT_S
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.settled_events import BadPlace
from twokey.gateway.trust.api_keys import ApiKey

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "Last-Event-ID"
KEEPALIVE_S = 15.0
"""How often a stream without events shows that it lives: proxies close idle ones."""

NextPage = Callable[[float], Awaitable[EventPage]]

QUEUE_STATES = {
    "pending": frozenset({ItemState.PENDING}),
    "authorized": frozenset({ItemState.AUTHORIZED}),
    "executing": frozenset({ItemState.EXECUTING}),
    "open": frozenset({ItemState.PENDING, ItemState.AUTHORIZED, ItemState.EXECUTING}),
}
"""Name of a queue to the states of the calls in it."""


async def approval(key: ApiKey, tenant: Tenant, approval_id: str) -> ApprovalView:
    """Return one approval.

    Raises:
        Refusal: there is none for this key.
    """
    found = await tenant.readings.one(approval_id, key.may_be)
    if found is None:
        raise Refusal(NOT_FOUND, "There is no such approval for this key.")
    return found


async def queue(key: ApiKey, tenant: Tenant, query: Mapping[str, str]) -> ApprovalPage:
    """Return a page of what is open.

    Raises:
        Refusal: when the question cannot be read.
    """
    _known(query, {"agent", "state", "cursor", "limit"})
    state = query.get("state", "pending")
    if state not in QUEUE_STATES:
        known = ", ".join(QUEUE_STATES)
        raise Refusal(MALFORMED, f"'state' is one of {known}, not {state[:40]!r}.")
    agent = query.get("agent", "")
    if agent:
        check_agents(key, [agent])
    try:
        return await tenant.readings.page(
            key.may_be,
            states=QUEUE_STATES[state],
            agent=agent,
            cursor=query.get("cursor", ""),
            limit=int(_number(query, "limit", PAGE, MOST_OF_A_PAGE, least=1)),
        )
    except BadJson as error:
        raise Refusal(MALFORMED, f"'cursor': {error.problem}.") from error


async def events(
    key: ApiKey,
    tenant: Tenant,
    request: web.BaseRequest,
    limits: RateLimits,
    *,
    is_valid: Callable[[], Awaitable[bool]],
) -> web.StreamResponse:
    """Return what happened since a place: as a page, or as a stream of events.

    A stream ends with its key: ``is_valid`` says whether that still counts.

    Raises:
        Refusal: when the question cannot be read, or too many of this key wait.
    """
    query = request.query
    _known(query, {"agent", "after", "wait"})
    agent = query.get("agent", "")
    if agent:
        check_agents(key, [agent])
    wait_s = _number(query, "wait", 0.0, LONGEST_WAIT_S)
    after = request.headers.get(LAST_EVENT_ID) or query.get("after", "")
    is_stream = EVENT_STREAM in request.headers.get("Accept", "")
    try:
        with limits.waiting(key.id):
            async with tenant.events.following(
                key.may_be, agent=agent, after=after
            ) as following:
                if is_stream:
                    return await _stream(request, tenant, following.next, is_valid)
                page = await following.next(wait_s)
    except BadPlace as error:
        raise Refusal(
            MALFORMED,
            "'Last-Event-ID' or 'after' is no id of an event of this gateway; leave it "
            "out to begin with what happens from now on.",
        ) from error
    return web.Response(text=page.model_dump_json(), content_type="application/json")


async def _stream(
    request: web.BaseRequest,
    tenant: Tenant,
    next_page: NextPage,
    is_valid: Callable[[], Awaitable[bool]],
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": EVENT_STREAM,
            "Cache-Control": "no-store",
            # nginx would hold events back until its buffer is full.
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    # The place goes first: who is cut off before anything happens goes on from there.
    first = True
    while not tenant.events.is_closing:
        page = await next_page(0.0 if first else KEEPALIVE_S)
        try:
            if not await is_valid():
                break
            async with asyncio.timeout(KEEPALIVE_S):
                await response.write(_lines(page, is_first=first))
        except (TimeoutError, ConnectionError, StoreUnavailable):
            # Who does not read is cut off, and so is everybody while nobody knows which
            # keys count; they go on from the last event that came.
            request.protocol.force_close()
            break
        first = False
    return response


def _lines(page: EventPage, *, is_first: bool) -> bytes:
    """Return a page as server-sent events; a comment where there is none."""
    lines: list[str] = []
    if page.missed:
        lines.append("event: missed\ndata: {}\n\n")
    lines += [
        f"id: {event.id}\nevent: {event.name}\n"
        f"data: {event.model_dump_json(exclude={'id'})}\n\n"
        for event in page.events
    ]
    if is_first and not page.events:
        place = json.dumps({"next": page.next})
        lines.append(f"id: {page.next}\nevent: begun\ndata: {place}\n\n")
    return "".join(lines or [": nothing new\n\n"]).encode()


def _known(query: Mapping[str, str], names: set[str]) -> None:
    unknown = sorted(query.keys() - names)
    if unknown:
        raise Refusal(
            MALFORMED,
            f"There is no parameter {unknown[0][:40]!r} here; there are "
            f"{', '.join(sorted(names))}.",
        )


def _number(
    query: Mapping[str, str],
    name: str,
    default: float,
    most: float,
    *,
    least: float = 0,
) -> float:
    text = query.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len("9999")
    if not is_number or not least <= int(text) <= most:
        raise Refusal(
            MALFORMED, f"{name!r} is a whole number from {least:g} to {most:g}."
        )
    return int(text)
