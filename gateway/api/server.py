"""Answer requests of agents in other processes over HTTP.

Each request is checked in the same order: its key, the key's limits and permissions,
the strict form of the body, and the owner of its calls. Then the service runs. Requests
without a key are refused by their header (`Api.admit`), before the body is read. Every
refusal is a problem (RFC 9457) whose sentence names the next step.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from aiohttp import web
from pydantic import BaseModel, TypeAdapter

from keyturn.gateway import tracing
from keyturn.gateway.api import operations
from keyturn.gateway.api.api_keys import ApiKeys, bearer
from keyturn.gateway.api.decide import Decisions, people_decide
from keyturn.gateway.api.operations import ReadinessView, Tenant, document
from keyturn.gateway.api.rate_limits import FailedKeys, RateLimits
from keyturn.gateway.api.refusals import Refusal, refused, unreadable
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import (
    CorruptRecord,
    KeyturnError,
    SettingsError,
    StoreUnavailable,
)
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.guarded_server import GuardedServer, Limits, listening
from keyturn.gateway.health import Readiness
from keyturn.gateway.instruments import answered
from keyturn.gateway.protocol import BASE
from keyturn.gateway.protocol.http_api import (
    CLOCK_HEADER,
    LEASE_HEADER,
    MAX_BODY_BYTES,
    AnswersQuestion,
    DecideQuestion,
    Operation,
    Scope,
)
from keyturn.gateway.protocol.http_problems import (
    FAILED,
    FORBIDDEN,
    NOT_FOUND,
    STOPPING,
    UNAUTHENTICATED,
    UNAVAILABLE,
    WRONG_METHOD,
    kind_of,
)
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run.agents import AgentService, RemoteRunService
from keyturn.gateway.service.run.approval_readings import ApprovalReadings
from keyturn.gateway.service_settings import ApiSettings
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey, presented

logger = logging.getLogger(__name__)

_APPROVAL = re.compile(rf"{BASE}/approvals/([A-Za-z0-9_]{{1,80}})(/decide)?", re.ASCII)
_AHEAD = re.compile(r"[+-][0-9]{1,9}", re.ASCII)
_JSON = "application/json"
_BYTES_OF_ONE = 64 * 1024
"""Size of a body that counts as one more request."""
_MAX_QUOTED = 80  # characters

DECIDE: TypeAdapter[DecideQuestion] = TypeAdapter(DecideQuestion)

T = TypeVar("T")

FOR_THE_OPERATOR = (
    "The gateway cannot answer; its log names the cause, which its operator can fix."
)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Route(NamedTuple):
    """The method and the handler of a path.

    ``admit`` checks the permissions of requests with a body, before the body is read.
    """

    method: str
    handle: Handler
    admit: Callable[[web.BaseRequest], Awaitable[object]] | None = None


class KeyedRoute(NamedTuple):
    """A request by POST that another package answers, for a valid API key.

    Attributes:
        scopes: the scopes that the key needs.
        answer: answers a request; its body has been read.
        refused: turns a refusal into an answer.
    """

    scopes: frozenset[Scope]
    answer: Callable[[ApiKey, web.BaseRequest], Awaitable[web.StreamResponse]]
    refused: Callable[[Refusal], web.StreamResponse] = refused


_COUNTED = web.RequestKey("keyturn_counted", bool)
_PERSON = web.RequestKey("keyturn_person", Reviewer)
"""Stored at a request: that it was counted, and the person who sent it."""


Report = Callable[[SecurityKind, str, str, str], Awaitable[None]]
"""Reports a security event: its kind, the affected thing, its name, and evidence."""


@dataclass
class Api:
    """The HTTP side of a gateway.

    Attributes:
        keys: checks API keys.
        tenant: the services of the tenant.
        limits: limits of each key.
        ready: returns the problems that stop the gateway from working.
        report: receives invalid keys, and clients whose clock is wrong.
        clock_s: Unix seconds by the store, for the date of answers.
        decisions: decisions of people over HTTP; None if they decide only in Slack.
        routes: requests that other packages answer, by their path.
        failed: limits of invalid keys per address.
        is_stopping: the process stops, so new work is refused.
    """

    keys: ApiKeys
    tenant: Tenant
    limits: RateLimits
    ready: Readiness
    report: Report
    clock_s: Callable[[], float]
    decisions: Decisions | None = None
    routes: Mapping[str, KeyedRoute] = field(default_factory=dict[str, KeyedRoute])
    failed: FailedKeys = field(default_factory=FailedKeys)
    is_stopping: bool = False

    def server(self, limits: Limits) -> GuardedServer:
        """Return the server; needs a running event loop."""
        return GuardedServer(
            self.handle, limits, name="api", error_answer=unreadable, admit=self.admit
        )

    async def admit(self, request: web.BaseRequest) -> web.StreamResponse | int:
        """Return the largest size of a request's body in bytes, or a refusal."""
        began_s = monotonic()
        found = await self._or_problem(request, partial(self._admit, request))
        if not isinstance(found, int):
            answered(self._name(request), found.status, began_s)
        return found

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every error becomes a problem."""
        began_s = monotonic()
        reply = await self._or_problem(
            request, lambda: self._route(request).handle(request)
        )
        if not reply.prepared:
            # Clients compare their clocks with it.
            reply.headers["Date"] = formatdate(self.clock_s(), usegmt=True)
        answered(self._name(request), reply.status, began_s)
        return reply

    def _name(self, request: web.BaseRequest) -> str:
        """Return a path without ids, for metrics."""
        path = _APPROVAL.sub(rf"{BASE}/approvals/{{id}}\2", request.path)
        return path if path != request.path or self._known(path) else "other"

    async def _admit(self, request: web.BaseRequest) -> int:
        route = self._route(request)
        if route.admit is None:
            return 0
        await route.admit(request)
        return MAX_BODY_BYTES

    async def _or_problem(
        self, request: web.BaseRequest, answer: Callable[[], Awaitable[T]]
    ) -> T | web.StreamResponse:
        route = self.routes.get(request.path)
        refuse = refused if route is None else route.refused
        try:
            return await answer()
        except Refusal as refusal:
            return refuse(refusal)
        except KeyturnError as error:
            return refuse(_refusal(error))
        except (ConnectionError, web.HTTPException):
            raise
        except any_failure() as error:  # only this request fails, not the server
            log_failure(logger, error, "api.failed")
            return refuse(Refusal(FAILED, "The gateway failed; see its log."))

    def _route(self, request: web.BaseRequest) -> _Route:
        path = request.path
        route = self._known(path)
        if route is None:
            raise Refusal(
                NOT_FOUND,
                f"There is no path {path[:_MAX_QUOTED]!r}; {BASE}/openapi.json lists "
                f"all of them. The address of a gateway ends before {BASE!r}.",
            )
        if request.method != route.method:
            raise Refusal(
                WRONG_METHOD,
                f"Use the method {route.method} for this path.",
                {"Allow": route.method},
            )
        return route

    def _known(self, path: str) -> _Route | None:
        if (operation := operations.BY_PATH.get(path)) is not None:
            admit = partial(self._key, scopes={operation.scope})
            return _Route("POST", partial(self._ask, operation), admit)
        if (route := self.routes.get(path)) is not None:
            admit = partial(self._key, scopes=route.scopes)
            return _Route("POST", partial(self._ask_route, route), admit)
        if found := _APPROVAL.fullmatch(path):
            approval, decides = found.groups()
            if decides:
                return _Route("POST", partial(self._decide, approval), self._person)
            return _Route("GET", partial(self._approval, approval))
        readings: dict[str, Handler] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            f"{BASE}/openapi.json": self._openapi,
            f"{BASE}/approvals": self._queue,
            f"{BASE}/events": self._events,
        }
        handle = readings.get(path)
        return _Route("GET", handle) if handle else None

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.BaseRequest) -> web.Response:
        problems = await self.ready()
        if self.is_stopping:
            problems = ["The process is stopping.", *problems]
        view = ReadinessView(ready=not problems, problems=problems)
        return _json(view, status=UNAVAILABLE.status if problems else 200)

    async def _openapi(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=document(), content_type=_JSON)

    async def _approval(self, id_: str, request: web.BaseRequest) -> web.Response:
        key = await self._key(request, {Scope.READ})
        return _json(await operations.approval(key, self.tenant, id_))

    async def _queue(self, request: web.BaseRequest) -> web.Response:
        key = await self._key(request, {Scope.READ})
        return _json(await operations.queue(key, self.tenant, request.query))

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        key = await self._key(request, {Scope.READ})
        answer = await operations.events(
            key,
            self.tenant,
            request,
            self.limits,
            find_key=partial(self._presented, request),
        )
        if not answer.prepared and "wait" in request.query:
            await self._valid(request)
        return answer

    async def _ask(
        self, operation: Operation[Any, Any], request: web.BaseRequest
    ) -> web.Response:
        key = await self._key(request, {operation.scope})
        body = await request.read()
        read = partial(operations.read, operation.question, body)
        question = await aside(read, [body])
        calls = operations.calls_in(question)
        self.limits.count_more(key.id, calls // operations.CALLS_OF_ONE)
        if size := operations.stored_bytes(operation, calls, body):
            ends_work = operation.name in operations.ENDS_WORK
            self.limits.store(key.id, size, ends_work=ends_work)
        await operations.check(key, self.tenant, question)
        lease = request.headers.get(LEASE_HEADER)
        waits = isinstance(question, AnswersQuestion) and question.wait_s > 0
        with (
            self.limits.waiting(key.id) if waits else nullcontext(),
            operations.under_lease(key, self.tenant, lease, question),
            tracing.inside(request.headers.get(tracing.HEADER, "")),
        ):
            ask = operations.ASK[operation.name]
            answer = await ask(self.tenant, key, question)
        if waits:
            await self._valid(request)
        body = operation.answer.dump_json(answer)
        return web.Response(body=body, content_type=_JSON)

    async def _ask_route(
        self, route: KeyedRoute, request: web.BaseRequest
    ) -> web.StreamResponse:
        return await route.answer(await self._key(request, route.scopes), request)

    async def _decide(self, id_: str, request: web.BaseRequest) -> web.Response:
        decisions, by = await self._person(request)
        body = await request.read()
        asked = await aside(partial(operations.read, DECIDE, body), [body])
        return _json(await decisions.decide(id_, asked, by, bearer(request)))

    def _refuse_while_stopping(self) -> None:
        if self.is_stopping:
            raise Refusal(
                STOPPING, "This process is stopping; ask again.", {"Retry-After": "1"}
            )

    async def _person(self, request: web.BaseRequest) -> tuple[Decisions, Reviewer]:
        """Return the decisions, and the person of a request."""
        if self.decisions is None:
            raise people_decide()
        if _PERSON not in request:
            self._refuse_while_stopping()
            by = request[_PERSON] = await self.decisions.reviewer(bearer(request))
            self.limits.take(f"person {by.team} {by.user}")
        return self.decisions, request[_PERSON]

    async def _key(
        self, request: web.BaseRequest, scopes: AbstractSet[Scope]
    ) -> ApiKey:
        """Return the key of a request, if it is valid and has the scopes."""
        self._refuse_while_stopping()
        found = await self._valid(request)
        # The key is checked again after the body has arrived, since it may have been
        # revoked by then, but the request is counted only once.
        if _COUNTED not in request:
            self.limits.take(found.id)
            self.limits.count_more(found.id, _counts_more(request))
            request[_COUNTED] = True
            ahead = request.headers.get(CLOCK_HEADER, "")
            if _AHEAD.fullmatch(ahead):
                name = f"agent with the API key {found.name}"
                side = "ahead" if int(ahead) > 0 else "behind"
                await self.report(SecurityKind.CLOCK_WRONG, "clock", name, side)
        for lacking in sorted(scopes - found.scopes):
            raise Refusal(
                FORBIDDEN, f"The key {found.name!r} lacks the scope {lacking.value!r}."
            )
        return found

    async def _valid(self, request: web.BaseRequest) -> ApiKey:
        """Return a request's key; asked again after a wait, which may outlive it."""
        found = await self._presented(request)
        if found is None:
            # Only its id: the text may be another program's key, or nearly one.
            shown = presented(bearer(request))
            name = shown.id if shown else ""
            await self.report(SecurityKind.KEY_REFUSED, "api_key", name, "")
            raise Refusal(
                UNAUTHENTICATED,
                "Send 'Authorization: Bearer tk_…' with a key that is valid now; "
                "`keyturn api-keys create` makes one.",
                {"WWW-Authenticate": "Bearer"},
            )
        return found

    async def _presented(self, request: web.BaseRequest) -> ApiKey | None:
        text = bearer(request)
        if not self.keys.knows(text):
            self.failed.check(request.remote or "")
        found = await self.keys.check(text)
        if found is None:
            self.failed.count(request.remote or "")
        return found


def _counts_more(request: web.BaseRequest) -> int:
    """Return how many more requests a request counts as, by its size."""
    if not request.body_exists:
        return 0
    # From its header, before it is read. Without a length it may have the largest size.
    length = request.content_length
    most = MAX_BODY_BYTES if length is None else min(length, MAX_BODY_BYTES)
    return most // _BYTES_OF_ONE


def _json(found: BaseModel, status: int = 200) -> web.Response:
    text = found.model_dump_json()
    return web.Response(text=text, status=status, content_type=_JSON)


def _refusal(error: KeyturnError) -> Refusal:
    """Return an error of the services as a refusal."""
    kind, text = kind_of(error), str(error)
    if kind.can_pass:
        log_failure(logger, error, "api.unavailable")
        if not isinstance(error, StoreUnavailable):
            # It may name a folder of this machine, or a rule of the policy.
            text = FOR_THE_OPERATOR
        return Refusal(kind, text, {"Retry-After": "1"})
    if isinstance(error, CorruptRecord):
        log_failure(logger, error, "record.corrupt")
        return Refusal(kind, text, approval=error.approval)
    return Refusal(kind, text)


DRAIN_S = 10.0
"""How long open requests may take when the process stops."""


Routes = Callable[[Tenant, RateLimits], Mapping[str, KeyedRoute]]
"""Returns requests that another package answers, by their path."""


@asynccontextmanager
async def serving_api(
    settings: Settings,
    store: Store,
    service: AgentService,
    reviews: ReviewService,
    ready: Readiness,
    *,
    routes: Routes | None = None,
) -> AsyncGenerator[str]:
    """Serve the HTTP API while the block runs, if the settings have an address.

    Args:
        settings: settings of the process.
        store: the store of the gateway.
        service: the service for agents.
        reviews: records decisions of people with a token.
        ready: returns the problems of this process, for `/readyz`.
        routes: requests that other packages answer; None: there are none.

    Yields:
        Its URL; "" without an address.

    Raises:
        SettingsError: when the address or the certificate cannot be used.
    """
    address = settings.api.listen
    if address is None:
        yield ""
        return
    tenant = settings.tenant
    kept = ApiKeyStore(store, tenant=tenant)
    feed = EventFeed(store, tenant=tenant)

    async def report(kind: SecurityKind, about: str, name: str, evidence: str) -> None:
        event = SecurityEvent(
            kind=kind, tenant=tenant, about=about, name=name, evidence=evidence
        )
        await store.security.report(store.keys_of_tenant(tenant), event)

    api = Api(
        ApiKeys(kept.seals, kept.find),
        # Only keys of this tenant are found: each record is sealed for its tenant.
        tenant_services(store, service, feed, tenant=tenant),
        limits=RateLimits(
            settings.api.requests_per_minute,
            megabytes_per_day=settings.api.megabytes_per_day,
            # The other half answers at once, such as claims and results.
            most_waits=settings.api.connections // 2,
        ),
        ready=ready,
        report=report,
        clock_s=store.conn.clock.now_s,
    )
    if settings.api.people is not None:
        # Imported only here: few gateways use OpenID Connect and its package.
        oidc = import_module("keyturn.gateway.api.person_tokens")
        tokens = oidc.PersonTokens(settings.api.people, now_s=store.conn.clock.now_s)
        api.decisions = Decisions(tokens, reviews)
    api.routes = routes(api.tenant, api.limits) if routes else {}
    limits = Limits(connections=settings.api.connections, body_bytes=MAX_BODY_BYTES)
    server, tls = api.server(limits), _tls(settings.api)
    names = "'api.listen' (KEYTURN_API_LISTEN)"
    async with (
        aclosing(feed),
        listening(server, address, names, drain_s=DRAIN_S, tls=tls) as url,
    ):
        logger.info("api.listening url=%s", url)
        try:
            yield url
        finally:
            # Before the server drains: waiting requests are answered now, and clients
            # ask another process.
            api.is_stopping = True
            feed.end_waits()


def tenant_services(
    store: Store, service: AgentService, feed: EventFeed, *, tenant: str
) -> Tenant:
    """Return the services for the agents of one tenant over HTTP."""
    return Tenant(
        port=service,
        runs=RemoteRunService(store, service, feed, tenant=tenant),
        readings=ApprovalReadings(store, lambda: service.policy_now, tenant=tenant),
        events=feed,
    )


def _tls(settings: ApiSettings) -> ssl.SSLContext | None:
    if settings.certificate is None or settings.private_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"The certificate {str(settings.certificate)!r} with the key "
            f"{str(settings.private_key)!r} cannot be used ({error.strerror}); see "
            "'api.certificate' and 'api.private_key'."
        ) from error
    return context
