"""Build, start and gracefully shut down the bot, with Bolt inside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Self, cast

from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.logger.messages import warning_token_skipped
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from keyturn.bot import web
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.publisher import Publisher
from keyturn.bot.ids import key_id
from keyturn.bot.ingress import (
    Delivery,
    Handle,
    Ingress,
    Receive,
    Sockets,
    StoreNonces,
    handle_once,
    serve,
)
from keyturn.bot.limits import HomeUpdates
from keyturn.bot.listener_context import ListenerContext, Tasks
from keyturn.bot.listeners import listen
from keyturn.bot.listeners.home_tab import follow
from keyturn.bot.listeners.router import DELIVERY, Bolt
from keyturn.bot.listeners.standing import check_givers
from keyturn.bot.reviewers import Reviewers
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.clock import now_s
from keyturn.gateway.config import SlackMode
from keyturn.gateway.errors import SettingsError, StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.health import Readiness, health_of, serving_health
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.report import process_check
from keyturn.gateway.store.connection.connection import refuses
from keyturn.gateway.store.connection.usable import in_time
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

_DRAIN_S = 10.0


class SlackBot:
    """The Slack side of the gateway, as a context manager.

    Inside the context it answers clicks and publishes events. On exit it finishes the
    work in progress and leaves unsent events in the outbox for the next start.

    Args:
        config: the bot's settings.
        service: records the decisions.
        clock: seconds, monotonic, also while the machine is suspended.
        others: returns problems of other parts in this process, for ``/readyz``.

    Attributes:
        url: the request URL for Slack in HTTP mode, on the server that also has the
            health endpoints. Empty without a server.
        health_url: the address from `metrics.listen` for health and metrics; "" if
            unset.
        team_id: the workspace that is served.
    """

    def __init__(
        self,
        config: BotConfig,
        service: ReviewService,
        *,
        clock: Callable[[], float] = now_s,
        others: Readiness | None = None,
    ) -> None:
        self._config = config
        self._others = others
        self._service = service
        self._clock = clock
        self._token: web.BotToken | None = None
        self._open = AsyncExitStack()
        self._tasks = Tasks()
        self._sockets: Sockets | None = None
        self._publisher: Publisher | None = None
        self._registration: process_check.Registration | None = None
        self.url = self.health_url = ""
        self.team_id = ""

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            SettingsError: a token, a scope or the port is wrong; the message names the
                fix.
            StoreUnavailable: the store does not answer.
        """
        quiet_slack_loggers()
        # If a later step fails, everything opened so far is closed in reverse order.
        # `pop_all` keeps it open once everything runs.
        async with AsyncExitStack() as opening:
            await self._start(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Stop, after finishing the work in progress."""
        await self._open.aclose()

    async def _start(self, opening: AsyncExitStack) -> None:
        config, store = self._config, self._service.store
        session = await opening.enter_async_context(outgoing())
        slack = web.Slack(config.bot_token, api_url=config.api_url, session=session)
        # First, because the other parts need the workspace that a valid token yields.
        me = await web.identify(slack, config)
        self.team_id = me.team
        token = self._token = web.BotToken(slack, config, clock=self._clock)
        reviewers = Reviewers(
            slack,
            team=me.team,
            enterprise=me.enterprise,
            clock=self._clock,
            unknown=partial(_report_lookup, store, config.tenant),
        )
        about = ProcessInfo(
            role="bot",
            where=process_check.process_name(),
            tenant=config.tenant,
            seals=key_id(config.seal_key),
            accepts=tuple(map(key_id, config.seal_keys)),
        )
        self._registration = await opening.enter_async_context(
            process_check.registered(store, about)
        )
        home = HomeUpdates(self._clock)
        self._publish(opening, slack, me, reviewers, home)
        # Pushed before ingress and sockets, so it runs after they are closed: no
        # request can start another task then, and private replies still get out.
        opening.push_async_callback(self._tasks.drain, timeout_s=_DRAIN_S)
        ctx = ListenerContext(
            service=self._service,
            slack=slack,
            reviewers=reviewers,
            token=token,
            tasks=self._tasks,
            config=config,
            team=me.team,
            bot_user=me.user,
            home=home,
        )
        for work in (follow(ctx), check_givers(ctx)):
            opening.push_async_callback(cancelled, asyncio.create_task(work))
        await self._answer(opening, ctx, me)
        logger.info("bot.started mode=%s team=%s", config.mode, me.team)

    async def _answer(
        self, opening: AsyncExitStack, ctx: ListenerContext, me: web.Identity
    ) -> None:
        """Answer Slack, by HTTP or through sockets."""
        config = self._config
        nonces, handle = self._handling(ctx, me)
        health = await health_of(
            self._service, self.problems, tenant=config.tenant, clock=self._clock
        )
        is_http = config.mode is SlackMode.HTTP
        ingress = Ingress(
            signing_secret=config.signing_secret if is_http else "",
            receive=partial(handle_once, nonces=nonces, handle=handle),
            clock=self._service.store.conn.clock.now_s,
            health=health if config.metrics.listen is None else None,
        )
        if is_http or config.port is not None:
            await self._listen(opening, ingress)
        shown = serving_health(config.metrics.listen, health)
        self.health_url = await opening.enter_async_context(shown)
        if config.mode is SlackMode.SOCKET:
            await self._connect(opening, ctx.slack, nonces, handle)

    def _handling(
        self, ctx: ListenerContext, me: web.Identity
    ) -> tuple[StoreNonces, Handle]:
        """Return the store of handled deliveries, and the handler of new ones."""
        app = bolt_app(self._config, me)
        listen(app, ctx)
        nonces = StoreNonces(self._service.store, self._config.tenant)
        return nonces, partial(dispatch, app)

    def _publish(
        self,
        opening: AsyncExitStack,
        slack: web.Slack,
        me: web.Identity,
        reviewers: Reviewers,
        home: HomeUpdates,
    ) -> None:
        self._publisher = Publisher(
            self._service, self._config, slack, me, reviewers, home, clock=self._clock
        )
        stop = asyncio.Event()
        running = asyncio.create_task(self._publisher.run(stop), name="publisher")

        async def finish() -> None:
            stop.set()
            # `wait` and not `wait_for`: it neither cancels the publisher nor raises,
            # and there is time to finish its calls.
            await asyncio.wait([running], timeout=_DRAIN_S)
            await cancelled(running)

        opening.push_async_callback(finish)

    async def _listen(self, opening: AsyncExitStack, ingress: Ingress) -> None:
        config = self._config
        try:
            self.url = await serve(opening, ingress, config)
        except SettingsError as refused:
            if config.mode is SlackMode.HTTP:
                raise
            # Socket Mode does not need this server: the bot works without its health
            # endpoints.
            logger.warning("bot.health_not_served why=%s", refused)

    async def _connect(
        self,
        opening: AsyncExitStack,
        slack: web.Slack,
        nonces: StoreNonces,
        handle: Handle,
    ) -> None:
        app_token = self._config.app_token
        sockets = Sockets(slack, app_token, nonces=nonces, handle=handle)
        opening.push_async_callback(sockets.close)
        try:
            await web.ask_until_answered(
                lambda: sockets.open(self._config.sockets), self._config
            )
        except web.SlackRefused as error:
            raise SettingsError(
                f"Slack refused SLACK_APP_TOKEN ({error.error!r}); it has to be an "
                "app-level token with the scope 'connections:write', from "
                "api.slack.com/apps, 'Basic Information'."
            ) from error
        self._sockets = sockets

    async def problems(self) -> list[str]:
        """Return the problems that stop the bot, as sentences."""
        # Together: each check waits up to three seconds for the store.
        checks = [self._own_problems(), *([self._others()] if self._others else [])]
        found = await asyncio.gather(*checks)
        # Both checks may report the same problem.
        return list(dict.fromkeys(chain(*found)))

    async def _own_problems(self) -> list[str]:
        problems: list[str] = []
        try:
            async with in_time():
                if self._publisher and (late := await self._publisher.problem()):
                    problems.append(late)
        except StoreUnavailable as error:
            problems.append(process_check.NO_WRITES if refuses(error) else str(error))
        if self._token is not None and (problem := await self._token.problem()):
            problems.append(problem)
        if self._sockets is not None and not self._sockets.connected:
            problems.append("No Socket Mode connection is open.")
        if self._registration is not None:
            problems += self._registration.problems
        return problems


class WorkspaceBot(SlackBot):
    """The bot of one workspace among several; `Workspaces` gives it its deliveries.

    Attributes:
        receive: answers the deliveries from this workspace.
    """

    receive: Receive

    async def _answer(
        self, opening: AsyncExitStack, ctx: ListenerContext, me: web.Identity
    ) -> None:
        del opening
        self._slack = ctx.slack
        nonces, handle = self._handling(ctx, me)
        self.receive = partial(handle_once, nonces=nonces, handle=handle)

    def use_token(self, token: str) -> None:
        """Continue with the newest token of the installation."""
        self._slack.use_token(token)


async def _report_lookup(store: Store, tenant: str, user: str) -> None:
    """Report that Slack did not identify a person, who therefore cannot decide."""
    failed = SecurityEvent(
        kind=SecurityKind.LOOKUP_FAILED, tenant=tenant, about="person", name=user
    )
    await store.security.report(store.keys_of_tenant(tenant), failed)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def dispatch(app: Bolt, delivery: Delivery) -> BoltResponse:
    """Let Bolt answer a delivery; every failure becomes a response."""
    try:
        response = await app.async_dispatch(
            AsyncBoltRequest(
                body=delivery.body,
                headers={**delivery.headers},
                context={DELIVERY: delivery},
                mode="http" if isinstance(delivery.body, str) else "socket_mode",
            )
        )
    except any_failure() as error:  # Slack needs a response
        # Listeners raise nothing, so the body has an unexpected shape.
        log_failure(logger, error, "bot.unreadable request=%s", delivery.digest)
        return BoltResponse(status=HTTPStatus.BAD_REQUEST)
    if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # Bolt itself found the body unreadable: refuse it, as above.
        return BoltResponse(status=HTTPStatus.BAD_REQUEST)
    return response


def bolt_app(config: BotConfig, me: web.Identity) -> Bolt:
    """Return Bolt's app: it answers when a listener is done.

    The result of ``auth.test`` at start replaces Bolt's own call for every request.
    Listeners check the sender of a request, because they can refuse with a sentence.
    """

    async def authorize() -> AuthorizeResult:
        """Return the bot's identity."""
        return AuthorizeResult(
            enterprise_id=me.enterprise or None,
            team_id=me.team,
            bot_token=config.bot_token,
            bot_id=me.bot_id,
            bot_user_id=me.user,
        )

    bolts = logging.getLogger("slack_bolt.keyturn")
    # Bolt reads SLACK_BOT_TOKEN from the environment; its warning about it is noise.
    bolts.addFilter(lambda record: record.getMessage() != warning_token_skipped())
    app = AsyncApp(
        # Bolt sets the level of the logger of this name at each request.
        name=bolts.name,
        logger=bolts,
        signing_secret=config.signing_secret,
        authorize=authorize,
        # Otherwise Bolt acknowledges events immediately and runs their listeners as
        # tasks: Slack would get 200 for a message that is never stored.
        process_before_response=True,
        # The ingress verifies signatures by the store's clock. Bolt would use this
        # machine's clock, and refuse every request if that clock is wrong.
        request_verification_enabled=False,
    )
    return cast("Bolt", app)


def quiet_slack_loggers() -> None:
    """Keep bodies and tokens out of logs: the SDK writes them below WARNING."""
    for name in ("slack_bolt", "slack_sdk"):
        slacks = logging.getLogger(name)
        slacks.setLevel(max(logging.WARNING, slacks.level))
