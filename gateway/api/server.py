"""Answer the questions of agents over HTTP.

A request goes through the same steps: its key, what the key may do, a strict reading of
the body, whose calls it is about, and the service. Every refusal is a problem (RFC
9457) with a sentence that says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from twokey.gateway.api.api_keys import ApiKeys
from twokey.gateway.errors import BadJson, TwokeyError
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol import http_api
from twokey.gateway.protocol.call_progress import CallEnd, CallProgress
from twokey.gateway.protocol.http_api import (
    MAX_BODY_BYTES,
    OPERATIONS,
    PROBLEM_TYPE,
    EditsQuestion,
    Finish,
    Heartbeat,
    History,
    LateReportsQuestion,
    NoteQuestion,
    Operation,
    ProblemKind,
    Release,
    kind_of,
    problem,
)
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.remote_runs import (
    AnswersQuestion,
    RunFacts,
    RunQuestion,
    Withdrawal,
)
from twokey.gateway.protocol.strict_json import parse
from twokey.gateway.protocol.thread_api import (
    THREAD_OPERATIONS,
    ThreadQuestion,
    read_lease,
)
from twokey.gateway.protocol.wire import ClaimRequest, Turn, TurnRef
from twokey.gateway.service.remote_runs import RemoteRunService
from twokey.gateway.service.remote_threads import RemoteThreads
from twokey.gateway.store.fences import holding
from twokey.gateway.trust.api_keys import ApiKey

logger = logging.getLogger(__name__)


class Refusal(Exception):
    """A request is answered with a problem."""

    def __init__(self, kind: ProblemKind, detail: str) -> None:
        self.kind = kind
        self.detail = detail
        super().__init__(detail)


@dataclass(frozen=True)
class Tenant:
    """What agents of one tenant may ask.

    Attributes:
        port: as it is for agents in the gateway's own process.
        runs: for those that bring their threads forward themselves.
        threads: their leases on these threads.
    """

    port: Gateway
    runs: RemoteRunService
    threads: RemoteThreads


Ask = Callable[[Gateway, Any], Awaitable[Any]]
AskOfRuns = Callable[[RemoteRunService, ApiKey, Any], Awaitable[Any]]

_ASK: dict[str, Ask] = {
    # Whatever the agent says of itself: no job of the gateway reaches its process.
    "submit": lambda port, turn: port.submit(turn.with_(resumes_itself=True)),
    "claim": lambda port, request: port.claim(request),
    "heartbeat": lambda port, it: port.heartbeat(it.item_id, it.fence),
    "finish": lambda port, it: port.finish(it.item_id, it.fence, it.result),
    "release": lambda port, it: port.release(
        it.item_id, it.fence, has_begun=it.has_begun
    ),
    "report_progress": lambda port, progress: port.report_progress(progress),
    "ended": lambda port, end: port.ended(end),
    "outcomes": lambda port, ref: port.outcomes(ref),
    "supersede": lambda port, ref: port.supersede(ref),
    "history": lambda port, it: port.history(it.run, it.within),
    "edits_known": lambda port, it: port.edits_known(it.ref, it.edits),
    "late_reports": lambda port, it: port.late_reports(it.ref, it.item_ids),
    "note": lambda port, it: port.note(it.agent),
}
"""How each operation asks the port."""

_ASK_OF_RUNS: dict[str, AskOfRuns] = {
    "remember": lambda runs, _, facts: runs.remember(facts),
    "pending": lambda runs, _, it: runs.pending(it.run),
    "answers": lambda runs, key, it: runs.answers(it, key.may_be),
    "withdraw": lambda runs, _, it: runs.withdraw(it),
    "supersede_run": lambda runs, _, it: runs.supersede_run(it.run),
}
"""The same of those about runs in other processes."""

_ASK_THREADS: dict[str, Callable[[RemoteThreads, Any], Awaitable[Any]]] = {
    "thread_lease": lambda threads, it: threads.lease(it),
    "settle": lambda threads, it: threads.settle(it),
}
"""The same of those about the threads of such runs."""


@dataclass(frozen=True)
class Api:
    """The HTTP side of a gateway.

    Attributes:
        keys: checks API keys.
        tenant_of: returns what a tenant's agents may ask.
        agent_of: returns the agent of an item of a tenant, None where there is none.
    """

    keys: ApiKeys
    tenant_of: Callable[[str], Tenant]
    agent_of: Callable[[str, str], Awaitable[str | None]]

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for operation in (*OPERATIONS, *THREAD_OPERATIONS):
            app.router.add_post(operation.path, self._handler(operation))
        return app

    def _handler(
        self, operation: Operation[Any, Any]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                answer = await self._answer(operation, request)
            except Refusal as refused:
                return _refused(refused.kind, refused.detail)
            except TwokeyError as error:
                kind = kind_of(error)
                if kind is http_api.UNAVAILABLE:
                    log_failure(logger, error, "api.unavailable")
                return _refused(kind, str(error))
            return web.Response(body=answer, content_type="application/json")

        return handle

    async def _answer(
        self, operation: Operation[Any, Any], request: web.Request
    ) -> bytes:
        key = await self._key(request)
        if operation.scope not in key.scopes:
            raise Refusal(
                http_api.FORBIDDEN,
                f"The key {key.name!r} lacks the scope {operation.scope!r}.",
            )
        question = await _question(operation, request)
        await self._check(key, question)
        tenant = self.tenant_of(key.tenant)
        with _lease(key, tenant, request):
            if (ask := _ASK_OF_RUNS.get(operation.name)) is not None:
                answer = await ask(tenant.runs, key, question)
            elif (ask_threads := _ASK_THREADS.get(operation.name)) is not None:
                answer = await ask_threads(tenant.threads, question)
            else:
                answer = await _ASK[operation.name](tenant.port, question)
        return operation.answer.dump_json(answer)

    async def _key(self, request: web.Request) -> ApiKey:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        found = await self.keys.check(text) if kind.lower() == "bearer" else None
        if found is None:
            raise Refusal(
                http_api.UNAUTHENTICATED,
                "Send 'Authorization: Bearer tk_…' with a key that is valid now; "
                "`twokey api-keys create` makes one.",
            )
        return found

    async def _check(self, key: ApiKey, question: object) -> None:
        """Refuse a question about another's calls."""
        _check_agents(key, _agents(question))
        for tool in _tools(question):
            if not key.may_use(tool):
                raise Refusal(
                    http_api.FORBIDDEN,
                    f"The key {key.name!r} may not use the tool {tool!r}.",
                )
        item = _item(question)
        if item is not None:
            owner = await self.agent_of(key.tenant, item)
            # One answer for what does not exist and what is another's: ids of others
            # are not told apart.
            if owner is None or not key.may_be(owner):
                raise Refusal(http_api.NOT_FOUND, "There is no such call for this key.")


def _lease(
    key: ApiKey, tenant: Tenant, request: web.Request
) -> AbstractContextManager[None]:
    """Let what is written for a request be fenced by the lease that it names."""
    text = request.headers.get(http_api.LEASE_HEADER)
    if text is None:
        return nullcontext()
    ref = read_lease(text)
    if ref is None:
        raise Refusal(
            http_api.MALFORMED, f"The header {http_api.LEASE_HEADER} is no lease."
        )
    _check_agents(key, [ref.run.agent])
    return holding(tenant.threads.held(ref))


def _check_agents(key: ApiKey, agents: Iterable[str]) -> None:
    for agent in agents:
        if not key.may_be(agent):
            raise Refusal(
                http_api.FORBIDDEN,
                f"The key {key.name!r} does not speak for the agent {agent!r}.",
            )


async def _question(operation: Operation[Any, Any], request: web.Request) -> object:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refusal(
            http_api.TOO_LARGE, f"A request may have {MAX_BODY_BYTES} bytes."
        ) from error
    try:
        return operation.question.validate_python(parse(body))
    except BadJson as error:
        raise Refusal(http_api.MALFORMED, str(error)) from error
    except ValidationError as error:
        # Without what it holds: that may be an argument.
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise Refusal(
            http_api.MALFORMED, f"The body does not fit at {place}: {first['msg']}."
        ) from error


def _agents(question: object) -> Iterable[str]:
    match question:
        case Turn() | CallProgress() | CallEnd() | ClaimRequest():
            ref = question.ref
        case EditsQuestion() | LateReportsQuestion():
            ref = question.ref
        case TurnRef():
            ref = question
        case History() | RunFacts() | RunQuestion() | AnswersQuestion() | Withdrawal():
            return (question.run.agent,)
        case ThreadQuestion():
            return (question.run.agent,)
        case NoteQuestion():
            return (question.agent,)
        case _:
            return ()
    # Of the run around it, too: what waits there can be ended by its name.
    return (ref.agent, ref.run_ref.agent)


def _tools(question: object) -> Iterable[str]:
    match question:
        case Turn():
            return (call.tool for call in question.calls)
        case ClaimRequest() | CallProgress() | CallEnd():
            return (question.tool,)
        case _:
            return ()


def _item(question: object) -> str | None:
    match question:
        case ClaimRequest() | Heartbeat() | Finish() | Release():
            return question.item_id
        case _:
            return None


def _refused(kind: ProblemKind, detail: str) -> web.Response:
    body = problem(kind, detail).model_dump_json()
    return web.Response(text=body, status=kind.status, content_type=PROBLEM_TYPE)
