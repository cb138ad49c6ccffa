"""Operations of the HTTP API, after the permissions of a request were checked.

The OpenAPI document is made from the models that the server uses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import getdoc
from typing import Any, Literal, NamedTuple, TypeVar

from aiohttp import web
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.executing import CLAIMED
from keyturn.gateway.errors import BadJson, StoreUnavailable
from keyturn.gateway.policy.schemas import parts_of
from keyturn.gateway.protocol import BASE
from keyturn.gateway.protocol.approval_views import (
    MOST_OF_A_PAGE,
    PAGE,
    ApprovalPage,
    ApprovalView,
    EventPage,
    EventView,
)
from keyturn.gateway.protocol.http_api import (
    LEASE_HEADER,
    LONGEST_WAIT_S,
    OPERATIONS,
    Attendance,
    ClaimedCall,
    DecideQuestion,
    DecideReply,
    Gateway,
    Operation,
    Scope,
    SettleQuestion,
    read_lease,
)
from keyturn.gateway.protocol.http_problems import (
    FORBIDDEN,
    KINDS,
    LEASE_LOST,
    MALFORMED,
    NOT_FOUND,
    PROBLEM_TYPE,
    Problem,
)
from keyturn.gateway.protocol.records import ItemState, Record, RunRef
from keyturn.gateway.protocol.strict_json import parse
from keyturn.gateway.protocol.wire import (
    AskedAgain,
    CallEnd,
    CallProgress,
    ClaimRequest,
    HandOverEnd,
    ReportedOutcome,
    Turn,
    TurnRef,
)
from keyturn.gateway.service.report.event_feed import BadPlace, EventFeed
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service.run.approval_readings import ApprovalReadings
from keyturn.gateway.store.scripts.fences import holding, while_unheld
from keyturn.gateway.trust.api_keys import ApiKey
from keyturn.gateway.validation_errors import sentence

Q = TypeVar("Q")

BY_PATH = {operation.path: operation for operation in OPERATIONS}

_MANY = 1000
"""Most misfits of a body for which the first is named."""

MAX_NAME = 2000
"""Longest name, such as of a thread, in characters: names are stored."""

MAX_CALLS = 1000
"""Most calls of a turn: all are evaluated together."""

MAX_SCHEMA_PARTS = 10_000
"""Most schemas, with their parts, for all tools of a turn."""

CALLS_OF_ONE = 10
"""Number of calls in a turn that count as one request."""

_BYTES_OF_A_WRITE = 1024
_BYTES_OF_A_CALL = 4096
"""Stored for a write, and for a call with its audit entries, besides the body."""

ENDS_WORK = {"finish", "hand_over", "release", "ended"}
"""Operations that report the result of an allowed call."""

_RENEWED = {"heartbeat", "attend", "settle", "thread_lease"}
"""Operations that only replace what an earlier one of them stored."""

WRITES = {one.name for one in OPERATIONS if one.scope is not Scope.READ} - _RENEWED
"""Operations that store more. Each is safe to repeat by the names in its body."""


@dataclass(frozen=True)
class Tenant:
    """The services for the agents of one tenant.

    Attributes:
        port: the port, as for agents in the gateway's process.
        runs: for programs that run threads themselves.
        readings: approvals, for their owners.
        events: events of approvals.
    """

    port: AgentService
    runs: RemoteRunService
    readings: ApprovalReadings
    events: EventFeed


Ask = Callable[[Tenant, ApiKey, Any], Awaitable[Any]]

ASK: dict[str, Ask] = {
    # Always, regardless of the request: jobs of the gateway cannot reach its process.
    "submit": lambda of, _, it: of.port.submit(it.with_(resumes_itself=True)),
    "claim": lambda of, _, it: of.port.claim(it),
    "heartbeat": lambda of, _, it: of.port.heartbeat(it.item_id, it.fence),
    "finish": lambda of, _, it: of.port.finish(it.item_id, it.fence, it.result),
    "hand_over": lambda of, _, it: of.port.hand_over(it),
    "report_outcome": lambda of, _, it: of.port.report_outcome(it),
    "report_asked_again": lambda of, _, it: of.port.report_asked_again(it),
    "release": lambda of, _, it: of.port.release(
        it.item_id, it.fence, has_begun=it.has_begun
    ),
    "report_progress": lambda of, _, it: of.port.report_progress(it),
    "ended": lambda of, _, it: of.port.ended(it),
    "outcomes": lambda of, _, it: of.port.outcomes(it),
    "supersede": lambda of, _, it: of.port.supersede(it),
    "history": lambda of, _, it: of.port.history(it.run, it.within),
    "edits_known": lambda of, _, it: of.port.edits_known(it.ref, it.edits),
    "late_reports": lambda of, _, it: of.port.late_reports(it.ref, it.item_ids),
    "definitions": lambda of, _, it: of.port.definitions(it),
    "keep_definitions": lambda of, _, it: of.port.keep_definitions(
        it.item_id, it.fence
    ),
    "note": lambda of, _, it: of.port.note(it.agent),
    "remember": lambda of, _, it: of.runs.remember(it),
    "pending": lambda of, _, it: of.runs.pending(it.run),
    "answers": lambda of, key, it: of.runs.answers(it, key.may_be),
    "attend": lambda of, _, it: of.port.attend(it),
    "withdraw": lambda of, _, it: of.runs.withdraw(it.run, it.item_ids, resumes=False),
    "supersede_run": lambda of, _, it: of.port.supersede_run(it.run),
    "thread_lease": lambda of, _, it: of.runs.thread_lease(it),
    "settle": lambda of, _, it: of.runs.settle(
        it.run, it.asked, is_finished=it.is_finished
    ),
}
"""The call for each operation."""


def read(adapter: TypeAdapter[Q], body: bytes) -> Q:
    """Parse a body, strictly.

    Raises:
        Refusal: when it is invalid.
    """
    try:
        return adapter.validate_python(parse(body))
    except BadJson as error:
        raise Refusal(MALFORMED, str(error)) from error
    except ValidationError as error:
        raise misfit(error) from error


def misfit(error: ValidationError) -> Refusal:
    """Return the refusal of a body that does not fit."""
    # pydantic describes all places or none. For a body of megabytes this takes half a
    # second, which blocks other requests.
    if (places := error.error_count()) > _MANY:
        return Refusal(MALFORMED, f"The body does not fit at {places} places.")
    # Without the value, which may be an argument.
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the whole"
    return Refusal(MALFORMED, f"The body does not fit at {place}: {first['msg']}.")


def calls_in(question: Record) -> int:
    """Return the number of calls that a question proposes."""
    return len(question.calls) if isinstance(question, Turn) else 0


def stored_bytes(operation: Operation[Any, Any], calls: int, body: bytes) -> int:
    """Return roughly how many bytes a request stores; 0 for a reading."""
    if operation.name not in WRITES:
        return 0
    return len(body) + _BYTES_OF_A_WRITE + calls * _BYTES_OF_A_CALL


async def check(key: ApiKey, tenant: Tenant, question: Record) -> None:
    """Refuse a question about other agents' calls.

    Raises:
        Refusal: when the key does not cover them, or the question is too large.
    """
    _check_size(question)
    # Also of its runs: the principals of an enclosing run are shown with the calls, and
    # its name is enough to end waiting calls there.
    check_agents(key, (text for at, text in _texts(question) if at == "agent"))
    for tool in _tools(question):
        if not key.may_use(tool):
            raise Refusal(
                FORBIDDEN, f"The key {key.name!r} may not use the tool {tool!r}."
            )
    # One answer for missing ids and ids of others, so that they cannot be told apart.
    if not await _is_known(key, tenant, question):
        raise Refusal(NOT_FOUND, "There is no such call for this key.")


def _check_size(question: Record) -> None:
    """Refuse a question that would block others.

    Raises:
        Refusal: when it has too many calls, too large schemas, or too long a name.
    """
    if calls_in(question) > MAX_CALLS:
        raise Refusal(MALFORMED, f"A turn may have {MAX_CALLS} calls.")
    if isinstance(question, Turn) and (
        sum(map(parts_of, question.schemas.values())) > MAX_SCHEMA_PARTS
    ):
        raise Refusal(
            MALFORMED,
            f"The schemas of a turn may have {MAX_SCHEMA_PARTS} parts; send those of "
            "the tools that it calls.",
        )
    if any(len(text) > MAX_NAME for at, text in _texts(question) if at != "says"):
        raise Refusal(MALFORMED, f"A name may have {MAX_NAME} characters.")


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the texts of a question, and of its turn and its runs, by their fields.

    Texts in calls are excluded: only the call with a long name is denied.
    """
    for field, value in record:
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, RunRef | TurnRef):
            yield from _texts(value)


async def _is_known(key: ApiKey, tenant: Tenant, question: Record) -> bool:
    """Return whether a call named by a question belongs to the key's agents.

    The gateway's record decides, because a request may name another tool.
    """
    match question:
        case (
            ClaimRequest()
            | ClaimedCall()
            | HandOverEnd()
            | ReportedOutcome()
            | AskedAgain()
            | Attendance()
        ):
            owner = await tenant.port.owner_of(question.item_id)
            if owner is None:
                return False
            agent, tool = owner
            return key.may_be(agent) and key.may_use(tool)
        case CallProgress() | CallEnd() if not key.may_use_all:
            tools = await tenant.port.tools_of(question.ref, question.tool_call_id)
            return bool(tools) and all(map(key.may_use, tools))
        case _:
            return True


def check_agents(key: ApiKey, agents: Iterable[str]) -> None:
    """Refuse agents that a key does not cover.

    Raises:
        Refusal: when one of them is not covered.
    """
    for agent in agents:
        if not key.may_be(agent):
            raise Refusal(
                FORBIDDEN,
                f"The key {key.name!r} does not speak for the agent {agent!r}.",
            )


@contextmanager
def under_lease(
    key: ApiKey, tenant: Tenant, text: str | None, question: Record
) -> Generator[None]:
    """Fence the writes of a request with the lease in its header.

    Settling a thread needs its lease: a replaced process, or one without a lease, would
    end calls that the thread has proposed since. Other requests need none, because a
    program may run its threads without leases. Proposing, running or superseding calls
    in a thread is refused while another process has its lease.

    Raises:
        Refusal: when the lease is invalid, missing, or for another agent or thread.
    """
    ref = None if text is None else read_lease(text)
    if ref is None and text is not None:
        raise Refusal(MALFORMED, f"The header {LEASE_HEADER} is no lease.")
    if ref is not None:
        check_agents(key, [ref.run.agent])
    if isinstance(question, SettleQuestion):
        if ref is None:
            raise Refusal(LEASE_LOST, f"Name the thread's lease: {LEASE_HEADER}.")
        if ref.run != question.run:
            raise Refusal(LEASE_LOST, "This is the lease of another thread.")
    with ExitStack() as fences:
        if ref is not None:
            fences.enter_context(holding(tenant.runs.held(ref)))
        run = _run_of(question)
        # An agent inside a tool has a separate thread, and works under its caller's
        # lease.
        if run is not None and (ref is None or ref.run != run):
            fences.enter_context(while_unheld(tenant.runs.lease_key(run)))
        yield


def _run_of(question: Record) -> RunRef | None:
    """Return the run that a question acts for; None if leases do not matter.

    A granted claim has a separate fence. Questions from outside a thread need no lease.
    """
    match question:
        case Turn() | ClaimRequest() | CallProgress():
            return question.ref.run_ref
        case TurnRef():
            return question.run_ref
        case _:
            return None


def _tools(question: Record) -> Iterable[str]:
    match question:
        case Turn():
            return (call.tool for call in question.calls)
        case ClaimRequest() | CallProgress() | CallEnd():
            return (question.tool,)
        case _:
            return ()


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


class ReadinessView(BaseModel):
    """The answer of `/readyz`: whether the gateway works, and its problems."""

    ready: bool
    problems: list[str] = []


Json = dict[str, Any]

_JSON = "application/json"
_REF = "#/components/schemas/{model}"
_ABOUT = "docs/http-api.md describes the API: keys, limits, and what to ask again."
_DECIDED = "The decision is processed like a click in Slack."
_STREAMED = "`event` is the name and `data` an EventView without `id`."
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_]{1,80}$"},
}


class _Route(NamedTuple):
    """One operation of the API: its description without bodies, and its bodies."""

    method: str
    path: str
    about: Json
    answer: TypeAdapter[Any]
    body: TypeAdapter[Any] | None = None


@cache
def document() -> bytes:
    """Return the document (OpenAPI 3.1), as JSON."""
    return json.dumps(_document(), sort_keys=True).encode()


def _document() -> Json:
    routes = [*map(_of_operation, OPERATIONS), *_readings()]
    inputs: list[tuple[str, Any, TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(Problem)),
        ("event", "serialization", TypeAdapter(EventView)),
    ]
    for one in routes:
        inputs.append((one.about["operationId"], "serialization", one.answer))
        if one.body is not None:
            inputs.append((one.about["operationId"], "validation", one.body))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    paths: Json = {}
    for one in routes:
        name = one.about["operationId"]
        answer = {_JSON: {"schema": schemas[name, "serialization"]}}
        responses = {
            "200": {"description": "The answer.", "content": answer},
            "default": {"$ref": "#/components/responses/Problem"},
        }
        found = paths.setdefault(one.path, {})
        found[one.method] = {**one.about, "responses": responses}
        if one.body is not None:
            content = {_JSON: {"schema": schemas[name, "validation"]}}
            found[one.method]["requestBody"] = {"required": True, "content": content}
    stream = {"schema": {"type": "string", "description": _STREAMED}}
    events = paths[f"{BASE}/events"]["get"]["responses"]
    events["200"]["content"][EVENT_STREAM] = stream
    ready = paths["/readyz"]["get"]["responses"]
    ready["503"] = {**ready["200"], "description": "`problems` lists the problems."}
    health = paths["/healthz"]["get"]["responses"]["200"]
    health["content"] = {"text/plain": health["content"][_JSON]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyturn",
            "version": "1",
            "summary": "Approvals by people for the tool calls of AI agents.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"api_key": []}],
        "paths": paths,
        "components": {
            "schemas": shared["$defs"],
            "responses": {"Problem": _problem()},
            "securitySchemes": {
                "api_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "tk_…, printed by `keyturn api-keys create`.",
                },
                "person": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "From the OpenID Connect issuer in `api.people`.",
                },
            },
        },
    }


def _of_operation(one: Operation[Any, Any]) -> _Route:
    headers = [_header(LEASE_HEADER, "The lease on a thread; see `thread_lease`.")]
    places = (Gateway, RemoteRunService, AgentService)
    method = next(getattr(it, one.name) for it in places if hasattr(it, one.name))
    summary, _, _ = (getdoc(method) or "").partition("\n")
    about = _about(one.name, summary, one.scope, parameters=headers)
    return _Route("post", one.path, about, one.answer, one.question)


def _readings() -> list[_Route]:
    last_id = _header(LAST_EVENT_ID, "The same as `after`, as browsers send it.")
    listed = "Return open approvals of your agents, the soonest due first, by pages."
    one = "Return one approval with the state of its calls."
    decided = "Decide on a call as a person, with a personal token, not an API key."
    followed = "Return events of your calls since a cursor, or follow them."
    person: Json = {
        "tags": ["people"],
        "description": _DECIDED,
        "security": [{"person": []}],
    }
    read, approvals = Scope.READ, f"{BASE}/approvals"
    queue = _about("list_approvals", listed, read, parameters=_query(QueueQuery))
    approval = _about("get_approval", one, read, parameters=[_ID])
    decide = _about("decide", decided, read, parameters=[_ID], **person)
    parameters = [*_query(EventsQuery), last_id]
    events = _about("events", followed, read, parameters=parameters)
    document = _about("openapi", "Return this document.", None)
    health = _about("healthz", "The process answers.", None)
    ready = _about("readyz", "Return whether the gateway works.", None)
    to_decide, decision = TypeAdapter(DecideQuestion), TypeAdapter(DecideReply)
    return [
        _Route("get", approvals, queue, TypeAdapter(ApprovalPage)),
        _Route("get", f"{approvals}/{{id}}", approval, TypeAdapter(ApprovalView)),
        _Route("post", f"{approvals}/{{id}}/decide", decide, decision, to_decide),
        _Route("get", f"{BASE}/events", events, TypeAdapter(EventPage)),
        _Route("get", f"{BASE}/openapi.json", document, TypeAdapter(Json)),
        _Route("get", "/healthz", health, TypeAdapter(str)),
        _Route("get", "/readyz", ready, TypeAdapter(ReadinessView)),
    ]


def _about(name: str, summary: str, scope: Scope | None, **more: object) -> Json:
    """Return an operation without its bodies; without a scope it needs no key."""
    found: Json = {"operationId": name, "summary": summary}
    if scope is None:
        return found | {"security": []}
    about = f"Needs the scope `{scope.value}`."
    return found | {"tags": [scope.value], "description": about} | more


def _query(model: type[BaseModel]) -> list[Json]:
    found = model.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": found[name]} for name in found]


def _header(name: str, description: str) -> Json:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _problem() -> Json:
    """Return the answer to a refused request, with all kinds of problems."""
    rows = [
        f"- {kind.status} `{kind.name}`: {kind.title}"
        + " *(ask again)*" * kind.can_pass
        for kind in KINDS.values()
    ]
    form = {
        "allOf": [
            {"$ref": _REF.format(model="Problem")},
            {"properties": {"type": {"enum": [*KINDS]}}},
        ]
    }
    about = "\n".join(["The request was refused.", "", *rows])
    return {"description": about, "content": {PROBLEM_TYPE: {"schema": form}}}
