"""Build, start and gracefully shut down the bot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from typing import Self

import aiohttp

from twokey.bot.bolt import bolt_app, quiet_slack_loggers
from twokey.bot.bot_token import BotToken
from twokey.bot.clicks_first import ClicksFirst
from twokey.bot.config import BotConfig
from twokey.bot.delivery.publisher import Publisher
from twokey.bot.delivery.publishers import publishers_of
from twokey.bot.dispatch import Dispatch
from twokey.bot.giver_checks import check_givers
from twokey.bot.home_updates import HomeUpdates
from twokey.bot.identity import Identity, ask_until_answered, identify
from twokey.bot.ids import key_id
from twokey.bot.ingress import Answer, Delivery, Ingress, nothing_at_once
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners import LISTENERS
from twokey.bot.listeners.home_tab import follow
from twokey.bot.listeners.router import Bolt, Router
from twokey.bot.listening import HTTP_PORT, serve, serve_privately
from twokey.bot.prometheus import MetricsEndpoint
from twokey.bot.reviewers import Reviewers
from twokey.bot.sockets import Sockets
from twokey.bot.store_nonces import StoreNonces, report_lookup
from twokey.bot.tasks import Tasks
from twokey.bot.user_cache import UserCache
from twokey.bot.web import Slack, SlackRefused
from twokey.bot.worker import WHOLE, PublisherHealth, Worker
from twokey.gateway.clock import now_s
from twokey.gateway.config import SlackMode
from twokey.gateway.errors import SettingsError, StoreUnavailable
from twokey.gateway.service.process_check import (
    NO_WRITES,
    Registration,
    process_name,
    process_problems,
    registered,
)
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.processes import ProcessInfo
from twokey.gateway.store.unavailable import refuses
from twokey.gateway.store.usable import until_usable

logger = logging.getLogger(__name__)

_DRAIN_S = 10.0


class SlackBot:
    """The Slack side of the gateway, as a context manager.

    Inside the context it answers clicks and publishes events. Leaving it answers what
    is under way and leaves the rest in the outbox for the next start.

    Args:
        config: what it was set up with.
        service: what decides.
        worker: which part of the bot this process is.
        clock: seconds, never going backwards, also of a machine that was suspended.

    Attributes:
        url: the request URL for Slack in HTTP mode; health endpoints are beside it.
            Empty when nothing listens.
        team_id: the workspace that is served.
    """

    def __init__(
        self,
        config: BotConfig,
        service: ReviewService,
        *,
        worker: Worker = WHOLE,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._config = config
        self._service = service
        self._worker = worker
        self._peer = None if worker.publishes else PublisherHealth(worker.health)
        self._clock = clock
        self._token: BotToken | None = None
        self._open = AsyncExitStack()
        self._tasks = Tasks()
        self._clicks_first = ClicksFirst(clock)
        self._sockets: Sockets | None = None
        self._publishers: list[Publisher] = []
        self._registration: Registration | None = None
        self.url = ""
        self.team_id = ""

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            SettingsError: a token, a scope or the port is wrong; says what to do.
            StoreUnavailable: the store does not answer.
        """
        quiet_slack_loggers()
        # What was opened is closed again, in reverse order, when a later step fails;
        # `pop_all` keeps it open only once everything runs.
        async with AsyncExitStack() as opening:
            await self._start(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Stop, after what is under way."""
        await self._open.aclose()

    async def _start(self, opening: AsyncExitStack) -> None:
        config, store = self._config, self._service.store
        session = await opening.enter_async_context(aiohttp.ClientSession())
        slack = Slack(config.bot_token, api_url=config.api_url, session=session)
        # First of all: without a valid token and its workspace nothing else can be set
        # up right.
        me = await identify(slack, config)
        self.team_id = me.team
        token = self._token = BotToken(slack, clock=self._clock)
        users = UserCache(
            slack, team=me.team, enterprise=me.enterprise, clock=self._clock
        )
        reviewers = Reviewers(
            users,
            team=me.team,
            enterprise=me.enterprise,
            clock=self._clock,
            unknown=partial(report_lookup, store, config.tenant),
        )
        self._registration = await opening.enter_async_context(
            registered(store, _process_info(config))
        )
        home = HomeUpdates(self._clock)
        if self._worker.publishes:
            await self._publish(opening, slack, me, reviewers, home)
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
        if self._worker.publishes:
            for work in (follow(ctx), check_givers(ctx)):
                opening.push_async_callback(_cancel, asyncio.create_task(work))
        if self._worker.answers:
            await self._answer(opening, ctx, bolt_app(config, me, session))
            for part in self._service.readings_ahead:
                ahead = asyncio.create_task(part.run(self._clicks_first.quiet))
                opening.push_async_callback(_cancel, ahead)
        else:
            ingress = await self._ingress()
            await serve_privately(opening, ingress, self._worker.health)
        logger.info(
            "bot.started mode=%s team=%s part=%s",
            config.mode,
            me.team,
            self._worker.part,
        )

    async def _answer(
        self, opening: AsyncExitStack, ctx: ListenerContext, app: Bolt
    ) -> None:
        """Answer Slack, by HTTP or through sockets."""
        config, router = self._config, Router(app, ctx)
        for register in LISTENERS:
            register(router)
        ingress = await self._ingress(Dispatch(router, app, self._clicks_first))
        if config.mode is SlackMode.HTTP or config.port is not None:
            await self._listen(opening, ingress)
        if config.mode is SlackMode.SOCKET:
            await self._connect(opening, ctx.slack, ingress)

    async def _publish(
        self,
        opening: AsyncExitStack,
        slack: Slack,
        me: Identity,
        reviewers: Reviewers,
        home: HomeUpdates,
    ) -> None:
        self._publishers = publishers_of(
            self._service,
            self._config,
            slack,
            me,
            reviewers,
            home,
            self._tasks,
            answers=self._worker.answers,
            clock=self._clock,
            first=self._clicks_first,
        )
        stop = asyncio.Event()
        running = [
            asyncio.create_task(one.run(stop), name="publisher")
            for one in self._publishers
        ]

        async def finish() -> None:
            stop.set()
            # `wait` and not `wait_for`: it neither cancels the publishers nor raises,
            # and they have time to finish their calls.
            await asyncio.wait(running, timeout=_DRAIN_S)
            for task in running:
                await _cancel(task)

        opening.push_async_callback(finish)

    async def _ingress(self, dispatch: Dispatch | None = None) -> Ingress:
        config = self._config
        is_answering = config.mode is SlackMode.HTTP and self._worker.answers
        metrics = MetricsEndpoint(self._service, clock=self._clock)
        if self._peer is None:
            await until_usable(metrics.begin, self._service.store.conn.url)
        return Ingress(
            signing_secret=config.signing_secret if is_answering else "",
            nonces=StoreNonces(self._service.store, config.tenant),
            handle=dispatch or _nobody,
            at_once=dispatch.at_once if dispatch else nothing_at_once,
            clock=self._service.store.conn.clock.now_s,
            ready=self._problems,
            facts=self._beside,
            metrics=self._peer.metrics if self._peer else metrics.text,
        )

    async def _listen(self, opening: AsyncExitStack, ingress: Ingress) -> None:
        config = self._config
        try:
            self.url = await serve(
                opening,
                ingress,
                host=config.host,
                port=HTTP_PORT if config.port is None else config.port,
                listener=self._worker.listener,
            )
        except SettingsError as refused:
            if config.mode is SlackMode.HTTP:
                raise
            # Slack is reached without it: the bot works, and only its health is not
            # to be seen.
            logger.warning("bot.health_not_served why=%s", refused)

    async def _connect(
        self,
        opening: AsyncExitStack,
        slack: Slack,
        ingress: Ingress,
    ) -> None:
        sockets = Sockets(
            slack,
            self._config.app_token,
            nonces=ingress.nonces,
            handle=ingress.handle,
            at_once=ingress.at_once,
        )
        opening.push_async_callback(sockets.close)
        try:
            await ask_until_answered(
                lambda: sockets.open(self._config.sockets), self._config
            )
        except SlackRefused as error:
            raise SettingsError(
                f"Slack refused SLACK_APP_TOKEN ({error.error!r}); it has to be an "
                "app-level token with the scope 'connections:write', from "
                "api.slack.com/apps, 'Basic Information'."
            ) from error
        self._sockets = sockets

    async def _beside(self) -> dict[str, object]:
        """Return what failed beside the bot, which keeps the bot from nothing."""
        store = self._service.store
        try:
            waiting, parked = await self._service.runs.counts()
            keys = store.keys_of_tenant(self._config.tenant)
            others = await process_problems(store, keys)
            outbox = (await self._service.live_metrics.outbox()).problem
        except StoreUnavailable:
            return {}
        failed = {"waiting": waiting, "parked": parked} if waiting or parked else {}
        found: dict[str, object] = {
            "runs": failed,
            "others": others,
            "outbox": outbox,
        }
        return {name: value for name, value in found.items() if value}

    async def _late(self) -> list[str]:
        """Return what is not published in time, and which shards do not answer.

        Raises:
            StoreUnavailable: none of them answers.
        """
        parts = self._publishers
        found = await asyncio.gather(
            *(one.problem() for one in parts), return_exceptions=True
        )
        away = list[str]()
        last: StoreUnavailable | None = None
        for part, problem in zip(parts, found, strict=True):
            if isinstance(problem, StoreUnavailable):
                away.append(part.shard)
                last = problem
            elif isinstance(problem, BaseException):
                raise problem
        if last is not None and len(away) == len(parts):
            raise last
        said = [one for one in found if isinstance(one, str) and one]
        if away:
            some = f"{', '.join(away)} of {len(parts)} shards"
            said.append(f"{some} of the store do not answer.")
        return said

    async def _problems(self) -> list[str]:
        problems: list[str] = []
        try:
            problems += await self._late()
            if self._peer is not None:
                problems += await self._peer.problems()
        except StoreUnavailable as error:
            away = "The store does not answer."
            problems.append(NO_WRITES if refuses(error) else away)
        if self._token is not None and (problem := await self._token.problem()):
            problems.append(problem)
        if self._sockets is not None and not await self._sockets.connected():
            problems.append("No Socket Mode connection is open.")
        if self._registration is not None:
            problems += self._registration.problems
        # It may be found by the reading as well as by the last sign of life.
        return list(dict.fromkeys(problems))


async def _nobody(_delivery: Delivery) -> Answer:
    """Answer where Slack is answered by other processes."""
    return Answer(HTTPStatus.NOT_FOUND)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _process_info(config: BotConfig) -> ProcessInfo:
    return ProcessInfo(
        role="bot",
        where=process_name(),
        tenant=config.tenant,
        seals=key_id(config.seal_key),
        accepts=tuple(map(key_id, config.seal_keys)),
    )
