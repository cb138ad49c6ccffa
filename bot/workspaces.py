"""Serve several workspaces with one app: a `WorkspaceBot` for each installation.

Each workspace has its own tenant, policy and store connection. A delivery is handed to
the bot of the workspace in which the person acted, before anything else reads it. So
the listeners of one workspace get no delivery of another one.

A loop compares the stored installations with the running bots: it starts and stops
bots, gives them renewed tokens, and renews tokens. So several processes serve the same
installations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import NamedTuple, cast

from prometheus_client import generate_latest
from slack_bolt.request.internals import parse_body
from slack_bolt.response import BoltResponse
from slack_sdk.oauth.installation_store import Installation

from keyturn.bot.app import WorkspaceBot, cancelled, quiet_slack_loggers
from keyturn.bot.ingress import HTTP_PORT, Delivery, Ingress, serve
from keyturn.bot.installations import RENEWED_BEFORE_MIN, Installations
from keyturn.bot.web import SlackBody, SlackError, SlackRefused, text_at
from keyturn.gateway.config import Settings, text_of
from keyturn.gateway.errors import KeyturnError, StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.health import Health, serving_health
from keyturn.gateway.instruments import REGISTRY
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two reads of the stored installations."""

_REMOVALS = frozenset({"app_uninstalled", "tokens_revoked"})

_GONE = frozenset({"account_inactive", "token_revoked"})
"""Refusals of a token that mean the end of its installation.

Other refusals may concern a token that another process is renewing right now.
"""


class Workspace(NamedTuple):
    """A workspace of the settings, with or without an installation.

    Attributes:
        organization: id of its organization, whose installation serves it as well; ""
            for none.
        service: decides the approvals of its tenant.
        bot: makes its bot, for a token.
    """

    organization: str
    service: ReviewService
    bot: Callable[[str], WorkspaceBot]


@dataclass(frozen=True)
class _Running:
    """A running bot, with the installation and the bot user of its start."""

    bot: WorkspaceBot
    installation: str
    bot_user: str


class Workspaces:
    """The bots of all workspaces of one app.

    Args:
        workspaces: the workspaces of the settings, by id.
        installations: the installations of the app.
    """

    def __init__(
        self, workspaces: Mapping[str, Workspace], installations: Installations
    ) -> None:
        self._workspaces, self._installations = workspaces, installations
        self._running: dict[str, _Running] = {}
        self._failed: dict[str, str] = {}
        self._store_problem = ""

    async def receive(self, delivery: Delivery) -> BoltResponse | None:
        """Answer a delivery by the bot of its workspace; see `handle_once`."""
        body = _parsed(delivery)
        if body is None:
            logger.warning("bot.unreadable request=%s", delivery.digest)
            return BoltResponse(status=HTTPStatus.BAD_REQUEST)
        team = team_of(body)
        if body.get("type") == "url_verification":
            return BoltResponse(status=200, body=str(body.get("challenge", "")))
        if text_at(body, "event", "type") in _REMOVALS:
            return await self._removed(body, team)
        running = self._running.get(team)
        if running is not None:
            placed = replace(delivery, body=_placed(body, team))
            return await running.bot.receive(placed)
        if team not in self._workspaces:
            logger.warning("workspace.not_served team=%s", team[:32])
            return BoltResponse(status=HTTPStatus.OK)
        # Slack repeats an event that is refused like this.
        self._installations.changed.set()
        return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _removed(self, body: SlackBody, team: str) -> BoltResponse:
        """End the waiting calls in the workspaces of a removed installation.

        The event may be late, or about a token that was replaced since, so Slack is
        asked. Slack repeats the event until everything has ended.
        """
        try:
            found = await self._installations.all()
            for id_ in {team, str(body.get("enterprise_id"))} & found.keys():
                slack = self._installations.slack_of(found[id_])
                with suppress(SlackRefused):
                    await slack.test()
                if slack.token_error in _GONE:
                    await self._end(id_, found, slack.token_error)
        except (SlackError, StoreUnavailable) as error:
            log_failure(logger, error, "workspace.not_removed team=%s", team)
            return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return BoltResponse(status=HTTPStatus.OK)

    async def _end(
        self, id_: str, found: Mapping[str, Installation], error: str
    ) -> None:
        for team, workspace in self._workspaces.items():
            if _serving(team, workspace, found) == id_:
                ended = await workspace.service.queue.end_without_reviewers()
                logger.warning("workspace.removed team=%s ended=%d", team, ended)
        # Last: until then, a repeated event ends the rest.
        await self._installations.remove(id_, found[id_], error)

    async def _follow(self) -> None:
        """Run the bots of the stored installations until it is cancelled."""
        changed = self._installations.changed
        try:
            while True:
                changed.clear()
                try:
                    await self._look()
                    self._store_problem = ""
                except StoreUnavailable as error:
                    self._store_problem = "The store does not answer."
                    log_failure(logger, error, "workspaces.not_read")
                except any_failure() as error:  # the loop has to go on
                    log_failure(logger, error, "workspaces.failed")
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_S)
        finally:
            await asyncio.gather(*map(self._stop, list(self._running)))

    async def _look(self) -> None:
        found = await self._installations.all()
        soon = time.time() + RENEWED_BEFORE_MIN * 60  # noqa: TID251 - the SDK's clock
        due = [i for i, it in found.items() if (it.bot_token_expires_at or soon) < soon]
        if due:
            await asyncio.gather(*map(self._installations.renew, due))
            found = await self._installations.all()
        self._installations.forget_refusals(due)
        starting = list[tuple[str, str, Installation]]()
        for team, workspace in self._workspaces.items():
            id_ = _serving(team, workspace, found)
            running = self._running.get(team)
            if running and not _is_of(running, id_, found):
                await self._stop(team)
                running = None
            if running:
                running.bot.use_token(str(found[id_].bot_token))
            elif id_:
                starting.append((team, id_, found[id_]))
        # Together: one that waits for Slack does not delay the others.
        await asyncio.gather(*(self._start(*one) for one in starting))

    async def _start(self, team: str, id_: str, of: Installation) -> None:
        bot = self._workspaces[team].bot(str(of.bot_token))
        try:
            await bot.__aenter__()
        except any_failure() as error:  # the other workspaces have to go on
            is_known = isinstance(error, KeyturnError)
            why = str(error) if is_known else "It did not start; see the bot's log."
            if self._failed.get(team) != why:
                log_failure(logger, error, "workspace.not_started team=%s", team)
            self._failed[team] = why
            return
        self._failed.pop(team, None)
        self._running[team] = _Running(bot, id_, str(of.bot_user_id))

    async def _stop(self, team: str) -> None:
        # Not served from now on, and then stopped.
        running = self._running.pop(team)
        await running.bot.__aexit__(None, None, None)
        logger.info("workspace.stopped team=%s", team)

    @asynccontextmanager
    async def serving(self, settings: Settings, store: Store) -> AsyncGenerator[None]:
        """Serve Slack and the installation pages while the block runs.

        Args:
            settings: of the bot.
            store: its clock is compared with Slack's timestamps.

        Raises:
            SettingsError: an address cannot be used; the message names the fix.
        """
        quiet_slack_loggers()
        slack, health_at = settings.slack, settings.metrics.listen
        health = Health(self._problems, self._facts, _metrics)
        ingress = Ingress(
            signing_secret=text_of(settings.signing_secret),
            receive=self.receive,
            health=health if health_at is None else None,
            pages=self._installations.pages,
            clock=store.conn.clock.now_s,
        )
        async with AsyncExitStack() as opening:
            following = asyncio.create_task(self._follow(), name="workspaces")
            opening.push_async_callback(cancelled, following)
            await serve(
                opening,
                ingress,
                host=slack.host,
                port=HTTP_PORT if slack.port is None else slack.port,
                settings="'slack.host' and 'slack.port' (KEYTURN_SLACK_PORT)",
            )
            await opening.enter_async_context(serving_health(health_at, health))
            yield

    async def _problems(self) -> list[str]:
        """Return the problems that stop the bots of all workspaces, as sentences."""
        return [self._store_problem] if self._store_problem else []

    async def _facts(self) -> Mapping[str, object]:
        """Return the problems of single workspaces; the others continue."""
        # Together: while Slack is slow, each check takes seconds.
        found = await asyncio.gather(*map(self._problems_of, self._workspaces))
        each = zip(self._workspaces, found, strict=True)
        return {"workspaces": {team: why for team, why in each if why}}

    async def _problems_of(self, team: str) -> list[str]:
        page = self._installations.page
        running = self._running.get(team)
        if running is None:
            default = f"The app is not installed here; install it at {page}"
            return [self._failed.get(team, default)]
        problems = await running.bot.problems()
        if code := self._installations.refused.get(running.installation):
            problems.append(
                f"Slack refused to renew the token ({code!r}), so it expires within "
                f"hours; install the app again at {page}"
            )
        return problems


async def _metrics() -> bytes:
    """Return the metrics of the process; gateways have those of their tenants."""
    return generate_latest(REGISTRY)


def _serving(team: str, workspace: Workspace, found: Mapping[str, Installation]) -> str:
    """Return the id of the installation that serves a workspace; "" for none."""
    ids = (team, workspace.organization)
    return next((id_ for id_ in ids if id_ in found), "")


def _is_of(running: _Running, id_: str, found: Mapping[str, Installation]) -> bool:
    """Return whether a bot only needs the newest token of an installation."""
    is_same = running.installation == id_
    return is_same and running.bot_user == str(found[id_].bot_user_id)


def _parsed(delivery: Delivery) -> SlackBody | None:
    """Return the payload of a delivery; None if it is unreadable."""
    content_type = delivery.headers.get("Content-Type", "").partition(";")[0]
    try:
        found = cast("object", parse_body(str(delivery.body), content_type))
    except ValueError:
        return None
    return cast("SlackBody", found) if isinstance(found, dict) else None


_PLACES = (("team", "id"), ("team_id",), ("view", "team_id"), ("user", "team_id"))
"""Places of the workspace's id in a payload. The first two can be missing only if a
whole organization installed the app.
"""


def team_of(body: SlackBody) -> str:
    """Return the workspace of a payload; "" without one."""
    # In a shared channel, `team_id` may be the workspace of another company.
    places = [text_at(one, "team_id") for one in _authorizations(body)[:1]]
    places += [text_at(body, *place) for place in _PLACES]
    return next(filter(None, places), "")


def _placed(body: SlackBody, team: str) -> dict[str, object]:
    """Return a payload that names its workspace where the listeners read it."""
    if authorizations := _authorizations(body):
        first, *rest = authorizations
        return {**body, "authorizations": [{**first, "team_id": team}, *rest]}
    is_named = text_at(body, "team", "id") or text_at(body, "team_id")
    return {**body} if is_named else {**body, "team": {"id": team}}


def _authorizations(body: SlackBody) -> list[SlackBody]:
    found = body.get("authorizations")
    each = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("SlackBody", one) for one in each if isinstance(one, dict)]
