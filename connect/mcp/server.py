"""The MCP server that clients see: tools of the upstreams, and `keyturn_wait`.

A request waits for a limited time (`hold`). If people still decide then, the reply
depends on the client's protocol. A client of the current protocol gets sealed state,
and repeats the request by itself. Other clients get an error with a ticket, which the
model passes to `keyturn_wait`. Neither needs a connection between requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from keyturn.connect.mcp.calls import KEPT_S, Call, Caller, Calls, gate_secret
from keyturn.connect.mcp.definitions import Definitions
from keyturn.connect.mcp.passage import Passage
from keyturn.connect.mcp.passing import Passing
from keyturn.connect.mcp.results import noted, text_result, with_pause
from keyturn.connect.mcp.upstreams import NotSent, UpstreamSpec
from keyturn.gateway.background import begun
from keyturn.gateway.errors import BadJson, KeyRefused, KeyturnError, NotAllowed
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol import strict_json, texts
from keyturn.gateway.protocol.records import Person

logger = logging.getLogger(__name__)

HOLD_S = 45.0
"""Seconds that a request waits; the shortest limit of a known client is 60."""

LIST_S = 20.0
"""Seconds that the list of tools waits for one of several servers. Clients wait 30
seconds, and are told when a server that starts slowly is there.
"""

MOST_SESSIONS = 1000
"""Largest number of clients of older protocols that get notifications."""

MOST_LEGS = 8
"""Most legs of a call with sealed state; clients stop after ten."""

LINK_S = 120.0
"""Seconds that a person may look at a link before the caller counts as gone."""

LINK = "People decide about this call in Slack. Open its card?"

PROGRESS_S = 10
"""Seconds between progress messages while people decide."""

WAIT = "keyturn_wait"
CALL_ID = "dev.keyturn/call"
_KNOWN_IDS = (CALL_ID, "claudecode/toolUseId")
_LONGEST_ID = 200
_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

INSTRUCTIONS = (
    "Some calls wait until a person has decided, which may take long. Such a call "
    "returns an error with a ticket: pass the ticket to keyturn_wait until you get the "
    "result, and do not make the call again. A person may change the arguments of a "
    "call: the result then begins with a notice."
)

_WAIT_TOOL = types.Tool(
    name=WAIT,
    description=(
        "Wait for the result of a call that a person decides on. Use it with the "
        "ticket that the call returned. It never makes a call again."
    ),
    input_schema={
        "type": "object",
        "properties": {"ticket": {"type": "string"}},
        "required": ["ticket"],
        "additionalProperties": False,
    },
    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class GateOptions:
    """The options of a gate.

    Attributes:
        upstreams: the servers behind the gate.
        agent: name of the agent that proposes the calls.
        api_key: the key for the gateway; the gate's secrets are derived from it.
        requester: the requester in the client's configuration.
        passed: kinds of other data to pass on, see `passing.KINDS`.
        holds: longest wait of a request in seconds, by client; "" for other clients.
        env: the environment of local servers.
    """

    upstreams: Sequence[UpstreamSpec]
    agent: str
    api_key: str = field(repr=False)
    requester: Person | None = None
    passed: frozenset[str] = frozenset()
    holds: Mapping[str, float] = field(default_factory=dict[str, float])
    env: Mapping[str, str] | None = field(default=None, repr=False)


class GateServer:
    """Answers the requests of MCP clients.

    Args:
        options: the options of the gate.
        passage: brings calls through the gateway.
        calls: the calls of this gate.
        definitions: the approved tools of its servers.
        passing: passes on resources and prompts.
        caller: returns the caller of a request; None: the configured requester.
    """

    def __init__(
        self,
        options: GateOptions,
        passage: Passage,
        calls: Calls,
        definitions: Definitions,
        passing: Passing,
        caller: Callable[[Context], Caller] | None = None,
    ) -> None:
        self.agent = options.agent
        self.upstreams = [spec.name for spec in options.upstreams]
        self._requester, self._asking = options.requester, caller
        self._holds = options.holds
        self._passage, self.calls = passage, calls
        self.definitions, self._bus = definitions, InMemorySubscriptionBus()
        self._sessions = dict[str, ServerSession]()
        self.server = Server[Any](
            "keyturn",
            version="1",
            # Otherwise the SDK lists all tools before each call over HTTP.
            get_tool_input_schema=lambda _: None,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
            **cast("Any", passing.handlers()),
        )
        security = RequestStateSecurity(
            keys=[gate_secret(options.api_key, "state")],
            ttl=KEPT_S,
            bind_principal=lambda ctx: self._caller(ctx).principal or None,
        )
        self.server.middleware.append(
            RequestStateBoundary(security, default_audience="keyturn")
        )

    async def list_tools(
        self, ctx: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """List the approved tools, without those of unreachable servers."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # To notify it of changes.
            request = _request(ctx)
            key = request.headers.get("mcp-session-id", "") if request else ""
            self._sessions.pop(key, None)
            self._sessions[key] = ctx.session
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        found = await asyncio.gather(*map(self._listed, self.upstreams))
        # No caching: a client must see changed tools.
        tools = [_WAIT_TOOL, *itertools.chain(*found)]
        return types.ListToolsResult(tools=tools, ttl_ms=0)

    async def _listed(self, name: str) -> list[types.Tool]:
        try:
            async with asyncio.timeout(LIST_S if len(self.upstreams) > 1 else None):
                tools = await self.definitions.approved(name)
        except (KeyturnError, TimeoutError) as error:
            logger.warning("mcp.unlisted upstream=%s %s", name, error)
            return []
        return [
            noted(tool).model_copy(update={"name": shown})
            for tool in tools
            if (shown := self.shown_name(name, tool.name))
        ]

    async def tell_changed(self) -> None:
        """Notify all clients that the list of tools may have changed."""
        await self._bus.publish(ToolsListChanged())
        for key, session in list(self._sessions.items()):
            try:
                await session.send_notification(types.ToolListChangedNotification())
            except any_failure():
                self._sessions.pop(key, None)

    def shown_name(self, upstream: str, tool: str) -> str:
        """Return a tool's name for clients; "" if no valid name is possible."""
        if len(self.upstreams) > 1:
            tool = f"{upstream}__{tool}"
        return tool if _TOOL.fullmatch(tool) and tool != WAIT else ""

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Answer one request of a call: its result, sealed state or a ticket."""
        try:
            if params.name == WAIT:
                return await self._collect(ctx, params)
            return await self._leg(ctx, params)
        except KeyturnError as error:
            return text_result(_trouble(error))

    async def _leg(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        wanted = self._wanted(ctx, params)
        await self._passage.recover()
        # `RequestStateBoundary` has verified the state.
        state = strict_json.parse_object(params.request_state or "{}")
        wanted.may_have_run = bool(state)
        wanted.id = str(state.get("call", self.calls.id_of(_known(ctx), wanted)))
        call = self.calls.find(wanted)
        if call is None:
            wanted.id = await self._passage.joined(wanted)
            # The same request may have come again.
            call = self.calls.find(wanted) or self.calls.begin(wanted)
        result = await self._waited(ctx, call)
        if result is not None:
            return with_pause(result, call.verdict)
        legs = int(cast("int", state.get("legs", 0))) + 1
        asks_again = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if asks_again and legs < MOST_LEGS and not call.is_in_doubt:
            self.calls.comes_back(call)
            link = None if state.get("linked") else await self._link(ctx, call)
            linked = bool(link or state.get("linked"))
            sealed = json.dumps({"call": call.id, "legs": legs, "linked": linked})
            return types.InputRequiredResult(request_state=sealed, input_requests=link)
        return self._later(call)

    async def _link(self, ctx: Context, call: Call) -> types.InputRequests | None:
        """Return a request to show the person at the client the card; or None.

        Clients reply in any way or not at all: the reply decides nothing.
        """
        may = ctx.session.client_capabilities
        shows_links = may and may.elicitation and may.elicitation.url is not None
        url = await self._passage.attend(call, LINK_S) if shows_links else ""
        if not url:
            return None
        params = types.ElicitRequestURLParams(message=LINK, url=url)
        return {"card": types.ElicitRequest(params=params)}

    async def _collect(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        ticket = (params.arguments or {}).get("ticket")
        caller = self._caller(ctx)
        found = isinstance(ticket, str) and self.calls.read_ticket(ticket, caller)
        if not found:
            return text_result(
                "This is no ticket of yours, so there is nothing to wait for. Pass the "
                "ticket exactly as the call returned it."
            )
        call = self.calls.get(found[1])
        if call is not None:
            return await self._waited(ctx, call) or self._later(call)
        # Collected before, or the gate was restarted.
        ended = await self._passage.ended_before(*found)
        return ended or text_result(
            "The gate was restarted, and people's decision about this call is kept. "
            "Make the same call once more, with the same arguments: it continues where "
            "it was, and is not asked again."
        )

    async def _waited(self, ctx: Context, call: Call) -> types.CallToolResult | None:
        """Wait for a call during one request, with progress messages."""
        # Before any wait: an equal request must not count this call as abandoned.
        call.waiting += 1
        call.progress = ctx.session.report_progress
        hold_s = self._holds.get(call.client, self._holds.get("", HOLD_S))
        waiting = asyncio.create_task(self._passage.wait(call, hold_s))
        telling = asyncio.create_task(_accompany(ctx, call, waiting))
        try:
            result = await waiting
        except asyncio.CancelledError:
            begun(self._passage.left(call))
            raise
        finally:
            call.waiting -= 1
            waiting.cancel()
            telling.cancel()
        if result is not None and not await _has_left(ctx):
            self.calls.collected(call)
        return result

    def _wanted(self, ctx: Context, params: types.CallToolRequestParams) -> Call:
        """Return the call of a request as a new one.

        Raises:
            NotAllowed: there is no such tool.
        """
        args = strict_json.accept_object(params.arguments or {})
        upstream, tool = next(iter(self.upstreams), ""), params.name
        if len(self.upstreams) > 1:
            upstream, _, tool = params.name.partition("__")
        if upstream not in self.upstreams or not tool:
            raise NotAllowed(f"There is no tool {params.name!r} in the list.")
        caller, name = self._caller(ctx), f"{upstream}__{tool}"
        return Call(
            id="",
            server=upstream,
            tool=name,
            name=tool,
            args=args,
            mark=self.calls.mark(caller, name, args),
            caller=caller,
            client=_client(ctx),
        )

    def _later(self, call: Call) -> types.CallToolResult:
        ticket = self.calls.ticket(call.caller, call.server, call.id)
        state = "This is no failure. A person still decides."
        if call.is_in_doubt:
            state = f"{texts.UNKNOWN_RESULT} Reviewers find out."
        elif call.work is not None:
            state = "This is no failure. The call runs now."
        result = text_result(
            f"{state} Your ticket is {ticket!r}: call {WAIT} with it to get the "
            f"result, as often as needed. {texts.NOT_AGAIN}"
        )
        return with_pause(result, call.verdict)

    def _caller(self, ctx: Context) -> Caller:
        return self._asking(ctx) if self._asking else Caller(person=self._requester)


async def _accompany(ctx: Context, call: Call, waiting: asyncio.Task[Any]) -> None:
    """Send progress while a request waits; cancel the wait if the client leaves."""
    for seconds in itertools.count(1):
        await asyncio.sleep(1)
        if await _has_left(ctx):
            waiting.cancel()
        elif seconds % PROGRESS_S == 0 and call.work is None:
            await ctx.session.report_progress(seconds, None, "People decide.")


async def _has_left(ctx: Context) -> bool:
    """Return True if the client has closed its HTTP request.

    In older protocols this is not a cancellation, so the SDK does not report it.
    """
    request = _request(ctx)
    return request is not None and await request.is_disconnected()


def _request(ctx: Context) -> Request[Any] | None:
    is_http = isinstance(ctx.request, Request)
    return cast("Request[Any]", ctx.request) if is_http else None


def _trouble(error: KeyturnError) -> str:
    """Return the text for a call that did not run."""
    match error:
        case BadJson():
            return (
                "Nothing was asked and nothing ran: an argument cannot be sent "
                f"exactly. {error} Make the call again with other arguments."
            )
        case KeyRefused():
            why = "the approval gateway does not accept this gate's API key"
        case NotAllowed():
            return f"{error} It did not run. {texts.NOT_AGAIN}"
        case NotSent():
            return f"{error} Nothing ran. Make the same call again later."
        case _:
            logger.warning("mcp.unavailable error=%s", error)
            why = "the approval gateway does not answer"
    return f"Nothing ran: {why}. Tell the user; make the same call again later."


def _known(ctx: Context) -> str:
    """Return the client's id of the call; "" without one."""
    meta: Mapping[str, object] = cast("Mapping[str, object]", ctx.meta or {})
    for name in _KNOWN_IDS:
        value = meta.get(name)
        if value and isinstance(value, str) and len(value) <= _LONGEST_ID:
            return f"{name} {value}"
    return ""


def _client(ctx: Context) -> str:
    params = ctx.session.client_params
    return strict_json.printable(params.client_info.name[:80] if params else "")
