"""Routes for reading: approvals, the queue and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from keyturn.gateway.api.operations import Tenant, check_agents
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.executing import CLAIMED
from keyturn.gateway.errors import BadJson, StoreUnavailable
from keyturn.gateway.protocol.approval_views import (
    MOST_OF_A_PAGE,
    PAGE,
    ApprovalPage,
    ApprovalView,
    EventPage,
)
from keyturn.gateway.protocol.http_api import LONGEST_WAIT_S
from keyturn.gateway.protocol.http_problems import MALFORMED, NOT_FOUND
from keyturn.gateway.protocol.records import ItemState, Record
from keyturn.gateway.service.report.event_feed import BadPlace
from keyturn.gateway.trust.api_keys import ApiKey
from keyturn.gateway.validation_errors import sentence

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "Last-Event-ID"
KEEPALIVE_S = 15.0
"""Pause between comments in an idle stream: proxies close idle connections."""

NextPage = Callable[[float], Awaitable[EventPage]]

# Such a call is listed only while a person wants its agent to ask again.
_AGAIN = frozenset({ItemState.NOT_TAKEN})
QUEUES = {
    "pending": frozenset({ItemState.PENDING}),
    "authorized": frozenset({ItemState.AUTHORIZED}),
    "executing": frozenset({ItemState.EXECUTING}),
    "handing_over": frozenset({ItemState.HANDING_OVER}),
    "ask_again": _AGAIN,
    "open": frozenset({ItemState.PENDING, ItemState.AUTHORIZED, *CLAIMED, *_AGAIN}),
}
"""The states of the calls in each queue."""


class QueueQuery(Record):
    """Query of the queue of approvals."""

    agent: str = Field("", description="Only of this agent.")
    state: Literal[
        "pending", "authorized", "executing", "handing_over", "ask_again", "open"
    ] = Field("pending", description="State of one of its calls.")
    cursor: str = Field("", description="`next` of the page before.")
    limit: int = Field(
        PAGE, ge=1, le=MOST_OF_A_PAGE, description="Approvals of a page."
    )


class EventsQuery(Record):
    """Query of events."""

    agent: str = Field("", description="Only events of this agent.")
    after: str = Field(
        "", description="`next` of the page before, or the id of an event."
    )
    wait: int = Field(
        0,
        ge=0,
        le=int(LONGEST_WAIT_S),
        description="Seconds to wait for the first event.",
    )


Query = TypeVar("Query", QueueQuery, EventsQuery)


async def approval(key: ApiKey, tenant: Tenant, approval_id: str) -> ApprovalView:
    """Return one approval.

    Raises:
        Refusal: when there is none for this key.
    """
    found = await tenant.readings.one(approval_id, key.may_be)
    if found is None:
        raise Refusal(NOT_FOUND, "There is no such approval for this key.")
    return found


async def queue(key: ApiKey, tenant: Tenant, query: Mapping[str, str]) -> ApprovalPage:
    """Return a page of open approvals.

    Raises:
        Refusal: when the query is invalid.
    """
    asked = _read(QueueQuery, query, key)
    try:
        return await tenant.readings.page(
            key.may_be,
            states=QUEUES[asked.state],
            agent=asked.agent,
            cursor=asked.cursor,
            limit=asked.limit,
        )
    except BadJson as error:
        raise Refusal(MALFORMED, f"'cursor': {error.problem}.") from error


async def events(
    key: ApiKey,
    tenant: Tenant,
    request: web.BaseRequest,
    limits: RateLimits,
    *,
    find_key: Callable[[], Awaitable[ApiKey | None]],
) -> web.StreamResponse:
    """Return events since a cursor, as a page or as a stream.

    A stream ends when ``find_key`` returns None: its key is not valid any more.

    Raises:
        Refusal: when the query is invalid, or too many requests of this key wait.
    """
    asked = _read(EventsQuery, request.query, key)
    after = request.headers.get(LAST_EVENT_ID) or asked.after
    is_stream = EVENT_STREAM in request.headers.get("Accept", "")
    try:
        with limits.waiting(key.id):
            async with tenant.events.following_calls(
                key.may_be, agent=asked.agent, after=after
            ) as following:
                if is_stream:
                    return await _stream(request, tenant, following.next, find_key)
                page = await following.next(float(asked.wait))
    except BadPlace as error:
        raise Refusal(
            MALFORMED,
            "'Last-Event-ID' or 'after' is not an id of an event of this gateway; omit "
            "it to begin with new events.",
        ) from error
    return web.Response(text=page.model_dump_json(), content_type="application/json")


async def _stream(
    request: web.BaseRequest,
    tenant: Tenant,
    next_page: NextPage,
    find_key: Callable[[], Awaitable[ApiKey | None]],
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": EVENT_STREAM,
            "Cache-Control": "no-store",
            # nginx would buffer events until its buffer is full.
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    # The cursor goes first: a client that is cut off early continues from there.
    first = True
    while not tenant.events.is_closing:
        page = await next_page(0.0 if first else KEEPALIVE_S)
        try:
            if await find_key() is None:
                break
            async with asyncio.timeout(KEEPALIVE_S):
                await response.write(_lines(page, is_first=first))
        except (TimeoutError, ConnectionError, StoreUnavailable):
            # Cut off clients that do not read, and all clients while keys cannot be
            # checked. They continue from their last event.
            request.protocol.force_close()
            break
        first = False
    return response


def _lines(page: EventPage, *, is_first: bool) -> bytes:
    """Return a page as server-sent events; a comment if it is empty."""
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


def _read(model: type[Query], query: Mapping[str, str], key: ApiKey) -> Query:
    """Parse a query, and check that the key covers its agent."""
    try:
        asked = model.model_validate(dict(query))
    except ValidationError as error:
        raise Refusal(MALFORMED, sentence(error.errors()[0], model)) from error
    if asked.agent:
        check_agents(key, [asked.agent])
    return asked


Readiness = Callable[[], Awaitable[list[str]]]
"""Returns the problems that stop the gateway from working."""


class ReadinessView(BaseModel):
    """The answer of `/readyz`: whether the gateway works, and its problems."""

    ready: bool
    problems: list[str] = []
