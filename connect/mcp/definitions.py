"""Pin the definitions of tools: clients see and call only approved definitions.

A server can change the description of a trusted tool, and models obey descriptions.
People approve all new and changed definitions of a server on one card. Until then, the
list contains the approved text, and calls wait. The gateway stores the approved
definitions, because the agent's machine could forge them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import mcp_types as types

from keyturn.connect.gate import Gate
from keyturn.connect.mcp.calls import Call
from keyturn.connect.mcp.upstreams import Upstream
from keyturn.connect.once import NotDecided, Permit, Work, once
from keyturn.gateway.background import begun
from keyturn.gateway.client import claiming
from keyturn.gateway.errors import BadJson, KeyturnError, NotAllowed
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol import digest, strict_json, wire
from keyturn.gateway.protocol.http_api import (
    DEFINITIONS_TOOL,
    DefinitionsQuestion,
    DefinitionsToApprove,
)
from keyturn.gateway.protocol.records import Result, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

logger = logging.getLogger(__name__)

ROOM_BYTES = 48 * 1024
"""Largest size of the definitions on one card; arguments have 64 KiB at most."""

THREAD = "mcp-definitions"
_KEPT = "The definitions are approved."


@dataclass(eq=False)
class _Server:
    upstream: Upstream
    approved: dict[str, JsonObject] | None = None
    current: dict[str, JsonObject] | None = None
    refused: str = ""
    asking: asyncio.Task[None] | None = None


class Definitions:
    """The definitions of all servers of a gate.

    Args:
        gate: the gateway.
        agent: name of the agent that proposes the definitions.
        upstreams: the servers, by name.
        changed: called when the list of approved tools may have changed.
    """

    def __init__(
        self,
        gate: Gate,
        agent: str,
        upstreams: Mapping[str, Upstream],
        changed: Callable[[], None],
    ) -> None:
        self._gate, self._agent, self.changed = gate, agent, changed
        self._servers = {name: _Server(one) for name, one in upstreams.items()}
        for name, one in upstreams.items():
            one.changed = partial(self._stale, name)

    async def approved(self, server: str) -> list[types.Tool]:
        """Return the approved tools of a server; ask people about the others.

        Raises:
            KeyturnError: the server or the gateway does not answer.
        """
        found = await self._read(server, is_fresh=True)
        if self._news(found):
            self._ask(server, found)
        kept = found.approved or {}
        return [
            types.Tool.model_validate(kept[name])
            for name in found.current or {}
            if name in kept
        ]

    async def states(self, server: str) -> dict[str, str]:
        """Return the state of each tool of a server: approved, new or changed.

        Raises:
            KeyturnError: the server or the gateway does not answer.
        """
        found = await self._read(server, is_fresh=True)
        news, kept = self._news(found), found.approved or {}
        known = {name: "changed" if name in kept else "new" for name in news}
        return {name: known.get(name, "approved") for name in found.current or {}}

    async def is_still(self, call: Call) -> bool:
        """Return True if the tool's definition is unchanged since the proposal.

        Raises:
            KeyturnError: the server does not answer.
        """
        found = await self._read(call.server, is_fresh=True)
        current = (found.current or {}).get(call.name)
        approved = (found.approved or {}).get(call.name)
        return current is not None and current == approved == call.definition

    async def of_call(self, server: str, tool: str) -> JsonObject | None:
        """Return the approved definition of a tool; None while people decide on it.

        Asks people about a new definition first.

        Raises:
            NotAllowed: the server has no such tool, or people refused its definition.
            KeyturnError: the server or the gateway does not answer.
        """
        found = await self._read(server)
        current = (found.current or {}).get(tool)
        if current is None:
            raise NotAllowed(f"The server {server!r} lists no tool {tool!r}.")
        if (found.approved or {}).get(tool) == current:
            return current
        if found.refused:
            raise NotAllowed(found.refused)
        self._ask(server, found)
        return None

    def wake(self, thread: str) -> None:
        """Read the approval with this thread again."""
        head, _, server = thread.partition("/")
        if head == THREAD and (found := self._servers.get(server)):
            # Another gate or `keyturn mcp trust` may have proposed the definitions.
            found.approved, found.refused = None, ""
            self.changed()

    async def ask(self, server: str, tool: str = "", *, again: bool = False) -> str:
        """Ask people about the new definitions of a server; wait for them.

        Args:
            server: name of the server.
            tool: only this tool; "" for all.
            again: ask also about definitions that people refused before.

        Returns:
            The reason for a refusal; "" if the definitions are approved.

        Raises:
            KeyturnError: the server or the gateway does not answer.
        """
        found = await self._read(server)
        while args := self._asked_at_once(server, found, tool):
            problem = await self._decided(found, args, again=again)
            if problem:
                return problem
        return ""

    def _ask(self, server: str, found: _Server) -> None:
        async def kept() -> None:
            try:
                found.refused = await self.ask(server)
            except KeyturnError as error:
                log_failure(logger, error, "mcp.definitions_unasked server=%s", server)
            self.changed()

        if found.asking is None or found.asking.done():
            found.asking = begun(kept())

    def _stale(self, server: str) -> None:
        self._servers[server].current = None
        self._servers[server].refused = ""
        self.changed()

    async def _read(self, server: str, *, is_fresh: bool = False) -> _Server:
        found = self._servers[server]
        if found.approved is None:
            await self._approved_again(server, found)
        if found.current is None or is_fresh:
            tools: list[types.Tool] = await found.upstream.listed("tools")
            # With a duplicate name, the approved and the called tool could differ.
            count = Counter(tool.name for tool in tools)
            found.current = {
                tool.name: document(tool) for tool in tools if count[tool.name] == 1
            }
        return found

    async def _approved_again(self, server: str, found: _Server) -> None:
        question = DefinitionsQuestion(agent=self._agent, server=server)
        kept = (await self._gate.definitions(question)).tools
        found.approved = {**(found.approved or {}), **kept}

    @staticmethod
    def _news(found: _Server) -> dict[str, JsonObject]:
        kept = found.approved or {}
        current = found.current or {}
        return {name: one for name, one in current.items() if kept.get(name) != one}

    def _asked_at_once(
        self, server: str, found: _Server, tool: str
    ) -> DefinitionsToApprove | None:
        """Return as many new definitions as fit on a card; None if there are none."""
        tools, replaces = dict[str, JsonObject](), dict[str, JsonObject]()
        room = ROOM_BYTES
        for name, one in self._news(found).items():
            before = (found.approved or {}).get(name)
            try:
                size = sum(len(digest.canonical(it)) for it in (one, before or {}))
            except BadJson:
                continue  # it cannot be shown exactly, so it stays unapproved
            if size > room or tool not in {"", name}:
                continue
            room -= size
            tools[name] = one
            if before is not None:
                replaces[name] = before
        if not tools:
            return None
        return DefinitionsToApprove(server=server, tools=tools, replaces=replaces)

    async def _decided(
        self, found: _Server, asked: DefinitionsToApprove, *, again: bool
    ) -> str:
        """Return the reason for a refusal; "" for an approval."""
        args = strict_json.accept_object(asked.model_dump(mode="json"))
        # A hash of the definitions, so that several gates ask about them only once.
        name = hashlib.sha256(digest.canonical(args)).hexdigest()[:32]
        attempt = 0
        while True:
            attempt += 1
            thread, message = f"{THREAD}/{asked.server}", f"{name}-{attempt}"
            ref = wire.TurnRef(agent=self._agent, thread=thread, message_id=message)
            hint = wire.CallHint(allow=(Verb.APPROVE, Verb.REJECT))
            call = wire.ProposedCall(
                tool=DEFINITIONS_TOOL, args=args, tool_call_id=message, hint=hint
            )
            [verdict] = await self._gate.submit(wire.Turn(ref=ref, calls=(call,)))
            if verdict.runs_unclaimed:
                # The policy approves all definitions, so none is stored.
                found.approved = {**(found.approved or {}), **asked.tools}
                return ""
            held, has_waited = claiming.HeldCall(ref, verdict, args), False
            work = Work(self._keep, lambda is_kept: Result(ok=is_kept, summary=_KEPT))
            try:
                report = await once(self._gate, held, work, limit_s=0)
            except NotDecided:
                has_waited = True
                report = await once(self._gate, held, work)
            if report.kind == "ran" and not report.is_error:
                await self._approved_again(asked.server, found)
                if asked.tools.items() <= (found.approved or {}).items():
                    return ""
                # They were approved once, and replaced by others since: ask anew.
                continue
            if report.kind != "closed" or report.answer is None:
                return report.text or "The definitions were not stored; ask again."
            # The same definitions were decided before: ask anew, unless refused.
            is_refused = report.answer.type is wire.AnswerKind.REJECT
            if has_waited or (is_refused and not again):
                why = report.answer.message
                why = f": {why}" if why else "."
                return f"People did not approve the definition of this tool{why}"

    async def _keep(self, _args: JsonObject, permit: Permit) -> bool:
        return await self._gate.keep_definitions(permit.item_id, permit.fence)


def document(tool: types.Tool) -> JsonObject:
    """Return a definition in the form for approval and comparison."""
    found: JsonObject = tool.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found
