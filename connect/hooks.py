"""Answer the hooks that coding agents send before each tool call.

The HTTP API serves `POST /v1/hooks/claude-code` and `POST /v1/hooks/codex`. The API key
names the agent. Each call is a turn in a separate thread, so parallel calls do not
supersede each other. The coding agent runs the call by itself: Keyturn hands the
decision over, and a later hook may report the result.

A hook waits for at most a minute, and people may take longer. Keyturn then denies the
call and advises the model to repeat it. The repeated call of the same session joins the
earlier one (`LeftCalls`). A failure of the gateway is a denial with status 200, because
coding agents run a call whose hook fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

from aiohttp import web
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
)

from keyturn.connect.coding_agents import (
    AGAIN_LATER,
    ANSWER_HEADER,
    CLAUDE_CODE,
    CODEX,
    EDIT_ADVICE,
    HANDED_BEFORE,
    MARGIN_S,
    NO_OPINION,
    NOT_CHANGEABLE,
    REQUESTER_HEADER,
    STILL_WAITS,
    TIMEOUT_S,
    WAIT_HEADER,
    CodingAgent,
    Reply,
    denied,
    reply,
)
from keyturn.gateway.api import operations
from keyturn.gateway.api.operations import Tenant
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal, refused
from keyturn.gateway.api.server import KeyedRoute, Routes
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import BadJson, KeyturnError
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import digest, http_api, strict_json, texts, wire
from keyturn.gateway.protocol.http_problems import FORBIDDEN, MALFORMED
from keyturn.gateway.protocol.records import EditRecord, ItemState, Person, Verb
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.http.left_calls import LeftCalls
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey

logger = logging.getLogger(__name__)

REPEATED_WITHIN = timedelta(minutes=10)
"""How long the same request gets the same answer after a hand-over."""

_LOOK_S = 2.0
"""How often a waiting request checks that its caller is still connected."""

_PAUSE_S = 0.2
_LONGEST_REPORT = 500  # characters
_SECONDS = re.compile(r"[0-9]{1,6}([.][0-9]{1,6})?", re.ASCII)
_CONTENT = "keyturn/v1/hook-call"
_FOLDER = "keyturn/v1/hook-folder"
_SCOPES = frozenset(
    {http_api.Scope.SUBMIT, http_api.Scope.READ, http_api.Scope.EXECUTE}
)
_REQUEST_AT_FAULT = frozenset({400, 401, 403, 405, 413})


class _HookCall(BaseModel):
    """The body of a hook's request; other members are ignored."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    hook_event_name: Literal["PreToolUse", "PostToolUse", "PostToolUseFailure"]
    session_id: str = Field(min_length=1, max_length=200)
    tool_use_id: str = Field(min_length=1, max_length=200)
    tool_name: str = Field(min_length=1)
    tool_input: dict[str, JsonValue]
    cwd: str = ""
    permission_mode: str = ""
    error: str = ""


_BODY = TypeAdapter(_HookCall)


@dataclass(frozen=True)
class _Asked:
    """One request: its sender, its call, and the longest wait in seconds."""

    of: CodingAgent
    key: ApiKey
    agent: str
    call: _HookCall
    request: web.BaseRequest
    body: bytes
    wait_s: float

    @property
    def session(self) -> str:
        # As JSON: each part may contain blanks.
        return json.dumps([self.agent, self.of.path, self.call.session_id])

    @property
    def place(self) -> str:
        """Return a key that is equal for equal calls of the same session."""
        call = self.call
        content: JsonValue = [call.tool_name, call.tool_input, call.cwd]
        hashed = digest.tagged_hash(_CONTENT, digest.canonical(content))
        return f"{self.session} {hashed}"

    @property
    def has_left(self) -> bool:
        """Return True if the caller has closed its connection."""
        return self.request.transport is None

    @property
    def defers(self) -> bool:
        """Return True if the run may end while people decide.

        A coding agent that ignores the deferral applies its permission mode. So only
        the mode ``default`` is deferred; the other modes could run the call.
        """
        may = self.of.defers and self.call.permission_mode == "default"
        return may and self.request.query.get("defer") == "1"

    def ref(self, call: str) -> wire.TurnRef:
        """Return the turn of a call of this session, in its folder."""
        thread = f"{self.of.path}/{self.call.session_id}/{call}"
        # The folder is on the card, so an approval must not count in another one.
        lane = digest.tagged_hash(_FOLDER, digest.canonical(self.call.cwd))
        return wire.TurnRef(agent=self.agent, thread=thread, ns=lane, message_id=call)


@dataclass(frozen=True)
class _Held:
    """A call with a record."""

    call: str
    ref: wire.TurnRef
    verdict: wire.Verdict
    may_repeat: bool

    @property
    def question(self) -> http_api.AnswersQuestion:
        """Return the question about people's decision."""
        item, action = self.verdict.item_id, self.verdict.action_hash
        asked = http_api.OpenQuestion(
            kind="keyturn.approval", item_id=item, action_hash=action
        )
        return http_api.AnswersQuestion(run=self.ref.run_ref, questions=(asked,))


def hook_routes(
    store: Store, *, tenant: str = "default", gated_servers: tuple[str, ...] = ()
) -> Routes:
    """Return the requests of hooks, for `serving_api`.

    Args:
        store: the store of the gateway.
        tenant: the tenant of the agents.
        gated_servers: MCP servers behind a gate, which asks about their calls.
    """

    def routes(services: Tenant, limits: RateLimits) -> Mapping[str, KeyedRoute]:
        left = LeftCalls(store, tenant=tenant)
        hooks = Hooks(services, limits, left, store.conn.clock.now_s, gated_servers)
        return {
            of.url_path: KeyedRoute(_SCOPES, partial(hooks.answer, of), _refused)
            for of in (CLAUDE_CODE, CODEX)
        }

    return routes


class Hooks:
    """The hooks of coding agents, for the agents of one tenant.

    Args:
        services: the services of the tenant.
        limits: limits of each key.
        left: held calls whose callers have disconnected.
        clock_s: returns the store's time in Unix seconds.
        gated_servers: MCP servers behind a gate, which asks about their calls.
    """

    def __init__(
        self,
        services: Tenant,
        limits: RateLimits,
        left: LeftCalls,
        clock_s: Callable[[], float],
        gated_servers: tuple[str, ...],
    ) -> None:
        self._of = services
        self._limits = limits
        self._left = left
        self._clock_s = clock_s
        self._gated = tuple(f"mcp__{name}__" for name in gated_servers)

    async def answer(
        self, of: CodingAgent, key: ApiKey, request: web.BaseRequest
    ) -> web.Response:
        """Answer a hook.

        Raises:
            Refusal: when the key does not name one agent, or the body is not a call.
        """
        asked = _read(of, key, request, await request.read())
        is_before = asked.call.hook_event_name == "PreToolUse"
        try:
            found = await (self._before(asked) if is_before else self._after(asked))
        except BadJson as error:
            found = denied(f"{error} So the call did not run; change its arguments.")
        except (Refusal, KeyturnError) as error:
            found = denied(f"This call did not run: {error} {AGAIN_LATER}")
        except any_failure() as error:
            log_failure(logger, error, "hook.failed")
            found = denied(f"The gateway failed, so this did not run. {AGAIN_LATER}")
        return _answer(found if is_before else NO_OPINION)

    async def _before(self, asked: _Asked) -> Reply:
        await aside(partial(strict_json.parse, asked.body), [asked.body])
        if asked.call.tool_name.startswith(self._gated):
            return NO_OPINION
        held = await self._submitted(asked)
        verdict = held.verdict
        if verdict.kind is wire.VerdictKind.DENY:
            return denied(texts.denial_text(verdict.reason))
        if verdict.runs_unclaimed:
            return NO_OPINION
        if verdict.kind is wire.VerdictKind.RUN:
            # No person approved it, so the user's own rules decide.
            found = await self._handed(asked, held, lambda _: NO_OPINION)
            return denied(AGAIN_LATER) if found is None else found
        return await self._waited(asked, held)

    async def _submitted(self, asked: _Asked) -> _Held:
        id_ = asked.call.tool_use_id
        call, is_collected = await self._left.earlier(asked.place, asked.session, id_)
        allow = None if asked.of.takes_edits else _WITHOUT_EDITS
        where = f"Folder: {asked.call.cwd}" if asked.call.cwd else ""
        proposed = wire.ProposedCall(
            tool=asked.call.tool_name,
            args=asked.call.tool_input,
            tool_call_id=call,
            hint=wire.CallHint(allow=allow, description=where),
        )
        turn = wire.Turn(
            ref=asked.ref(call),
            calls=(proposed,),
            handed_to=asked.of.name,
            resumes_itself=True,
        )
        await operations.check(asked.key, self._of, turn)
        if requester := asked.request.headers.get(REQUESTER_HEADER):
            person = Person(team="", user=requester)
            facts = http_api.RunFacts(run=turn.ref.run_ref, requester=person)
            await self._of.runs.remember(facts)
        size = operations.stored_bytes(http_api.SUBMIT, 1, asked.body)
        self._limits.store(asked.key.id, size)
        [verdict] = await self._of.port.submit(turn)
        # Only the request that received the answer may receive it again.
        return _Held(call, turn.ref, verdict, is_collected or call == id_)

    async def _waited(self, asked: _Asked, held: _Held) -> Reply:
        """Wait for the decision, and hand it over if the caller is still connected."""
        place, clock = asked.place, asyncio.get_running_loop().time
        await self._left.hold(place, held.call, asked.wait_s + MARGIN_S)
        ends = clock() + asked.wait_s
        found = None
        try:
            with self._limits.waiting(asked.key.id):
                while found is None and not asked.has_left:
                    left_s = min(_LOOK_S, ends - clock())
                    found = await self._answered(asked, held, left_s)
                    if clock() >= ends or self._of.events.is_closing:
                        break
        finally:
            if found is None:
                await self._left.hold(place, held.call, 0)
        if found is None:
            text = f"{STILL_WAITS} {texts.pause_text(held.verdict)}".rstrip()
            return reply("defer" if asked.defers else "deny", text)
        joined_at = (asked.session, asked.call.tool_use_id)
        may_repeat = found != denied(HANDED_BEFORE)
        await self._left.collected(place, *joined_at, held.call, may_repeat=may_repeat)
        return found

    async def _answered(
        self, asked: _Asked, held: _Held, wait_s: float
    ) -> Reply | None:
        """Return the reply to a decided call; None while people still decide."""
        question = held.question.with_(wait_s=max(0.0, wait_s))
        found = await self._of.runs.answers(question, asked.key.may_be)
        if not found or asked.has_left:
            return None
        answer = wire.Answer.model_validate(found[0].answer)
        if answer.type in {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}:
            return await self._handed(asked, held, partial(_allowed, asked))
        pause = texts.pause_text(held.verdict)
        return denied(f"{texts.ended_text(answer)} {pause}".rstrip())

    async def _handed(
        self,
        asked: _Asked,
        held: _Held,
        allowed: Callable[[EditRecord | None], Reply],
    ) -> Reply | None:
        """Hand a decision over; return None while another request does it."""
        port, verdict = self._of.port, held.verdict
        asks = wire.ClaimRequest(
            item_id=verdict.item_id,
            ref=held.ref,
            tool=asked.call.tool_name,
            tool_call_id=held.call,
            owner=uuid.uuid4().hex,
        )
        match found := await port.claim(asks):
            case wire.Claimed():
                end = wire.HandOverEnd(
                    item_id=verdict.item_id, fence=found.fence, taken=True
                )
                is_taken = await port.hand_over(end)
                return allowed(found.edit) if is_taken else None
            case wire.HandedOver(taken=True) if await self._is_recent(asked, held):
                return allowed(found.edit)
            case wire.Busy() | wire.Reopened():
                await asyncio.sleep(_PAUSE_S)
                return None
            case wire.Refused():
                return denied(found.reason)
            case _:
                return denied(HANDED_BEFORE)

    async def _is_recent(self, asked: _Asked, held: _Held) -> bool:
        """Return True if an earlier attempt of this request received the decision."""
        if not held.may_repeat:
            return False
        approval_id, index = approval_of(held.verdict.item_id)
        found = await self._of.readings.one(approval_id, asked.key.may_be)
        earliest = datetime.fromtimestamp(self._clock_s(), UTC) - REPEATED_WITHIN
        return found is not None and found.calls[index].changed_at > earliest

    async def _after(self, asked: _Asked) -> Reply:
        """Report the result of a handed-over call; ignore all other calls."""
        call = await self._left.joined(asked.session, asked.call.tool_use_id)
        outcomes = await self._of.port.outcomes(asked.ref(call))
        for outcome in outcomes:
            if outcome.state is ItemState.HANDED_OVER:
                report = wire.ReportedOutcome(
                    item_id=outcome.item_id,
                    ok=asked.call.hook_event_name == "PostToolUse",
                    summary=asked.call.error[:_LONGEST_REPORT],
                )
                await self._of.port.report_outcome(report)
        return NO_OPINION


_WITHOUT_EDITS = (Verb.APPROVE, Verb.REJECT, Verb.RESPOND)


def _read(
    of: CodingAgent, key: ApiKey, request: web.BaseRequest, body: bytes
) -> _Asked:
    """Parse a request.

    Raises:
        Refusal: when it is not the request of a hook.
    """
    if len(key.agents) != 1 or "*" in key.agents:
        raise Refusal(
            FORBIDDEN,
            f"The key {key.name!r} must name exactly one agent. Make such a key with "
            "`keyturn api-keys create NAME --agent coder`.",
        )
    try:
        # Strict JSON comes later: its refusal is a denial, which the model reads.
        call = _BODY.validate_json(body)
    except ValidationError as error:
        raise operations.misfit(error) from error
    given = request.headers.get(WAIT_HEADER, f"{TIMEOUT_S}")
    if _SECONDS.fullmatch(given) is None:
        raise Refusal(MALFORMED, f"{WAIT_HEADER} takes a number of seconds.")
    wait_s = min(max(float(given), MARGIN_S), TIMEOUT_S) - MARGIN_S
    [agent] = key.agents
    return _Asked(of, key, agent, call, request, body, wait_s)


def _refused(refusal: Refusal) -> web.Response:
    """Deny the call, unless the request itself is at fault."""
    if refusal.kind.status in _REQUEST_AT_FAULT:
        return refused(refusal)
    return _answer(denied(f"{refusal.detail} {AGAIN_LATER}"))


def _answer(content: Reply) -> web.Response:
    return web.json_response(content, headers={ANSWER_HEADER: "1"})


def _allowed(asked: _Asked, edit: EditRecord | None) -> Reply:
    """Return the answer for an approved call, with its changed arguments."""
    if not asked.of.takes_edits:
        # An edit was not offered. Codex refuses a plain permission as unsupported.
        return NO_OPINION if edit is None else denied(NOT_CHANGEABLE)
    if edit is None:
        return reply("allow", "A reviewer approved this call.")
    args = digest.in_spelling_of(asked.call.tool_input, edit.edited_args)
    return reply(
        "allow",
        "A reviewer changed this call and approved it.",
        updatedInput=args,
        additionalContext=texts.edit_text(edit, EDIT_ADVICE),
    )
