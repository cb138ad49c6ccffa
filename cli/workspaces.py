"""Run the bot of an app that several workspaces install, each with its own tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from slack_sdk.oauth.installation_store import Installation

from keyturn.bot.app import WorkspaceBot
from keyturn.bot.manifest import INSTALL_PATH
from keyturn.bot.web import SlackRefused
from keyturn.bot.workspaces import Installations, Workspace, Workspaces
from keyturn.cli.reviewer_checks import Check, State
from keyturn.cli.stack import config_of, reviewing
from keyturn.cli.store_access import open_configured
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.config import VARIABLES, Settings, SlackMode, text_of
from keyturn.gateway.errors import KeyturnError, SettingsError
from keyturn.gateway.policy.load import load_with_lines
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store

_OF_ONE = {"tenant", "policy", "data_dir", "audit_folder", "slack"}
"""Settings that a variable cannot override in the files of all workspaces."""


def workspaces_of(settings: Settings, env: Mapping[str, str]) -> dict[str, Settings]:
    """Return the settings of each workspace, by its id.

    Args:
        settings: those of the bot; they name the files.
        env: environment of the bot. Its secrets and its store count for all of them.

    Raises:
        SettingsError: a file is wrong, or two of them are not of different workspaces
            and tenants.
    """
    common = {
        name: value
        for name, value in env.items()
        if VARIABLES.get(name, ("",))[0] not in _OF_ONE
    }
    found = {file: Settings.load(file, common) for file in settings.slack.workspaces}
    for file, one in found.items():
        if not one.slack.team:
            raise SettingsError(
                f"{str(file)!r} does not name its workspace; set 'slack.team' there."
            )
    _require_distinct("slack.team", {f: s.slack.team for f, s in found.items()})
    # In one tenant, people of one workspace could decide calls of another one.
    _require_distinct("tenant", {f: s.tenant for f, s in found.items()})
    return {one.slack.team: one for one in found.values()}


def _require_distinct(setting: str, given: Mapping[Path, str]) -> None:
    for value, count in Counter(given.values()).items():
        if count > 1:
            files = ", ".join(repr(str(f)) for f, one in given.items() if one == value)
            raise SettingsError(
                f"The files {files} have the same {setting!r}, {value!r}; give each "
                "workspace its own."
            )


@asynccontextmanager
async def serving_workspaces(
    settings: Settings, env: Mapping[str, str], *, insecure_dev: bool
) -> AsyncGenerator[Store]:
    """Run the bots of all workspaces; yield the store of their installations.

    Raises:
        KeyturnError: one sentence about the first problem.
    """
    if problems := settings.slack_problems():
        raise SettingsError(" ".join(problems))
    each = workspaces_of(settings, env)
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        workspaces = dict[str, Workspace]()
        for team, one in each.items():
            service = await enter(reviewing(one, insecure_dev=insecure_dev))
            bot = partial(_bot, settings, one, service)
            workspaces[team] = Workspace(one.slack.organization, service, bot)
        store = await enter(
            open_configured(settings, insecure_dev=insecure_dev, waits=True)
        )
        session = await enter(outgoing())
        installations = Installations(store, settings, _served(each), session)
        await enter(Workspaces(workspaces, installations).serving(settings, store))
        yield store


def _served(each: Mapping[str, Settings]) -> frozenset[str]:
    """Return the ids of workspaces and organizations that may install the app."""
    named = (one.slack.organization for one in each.values())
    return frozenset({*each, *named} - {""})


async def check_workspaces(
    settings: Settings, env: Mapping[str, str]
) -> AsyncGenerator[Check]:
    """Yield the doctor's check of each workspace: its file and its installation."""
    try:
        each = workspaces_of(settings, env)
        async with (
            open_configured(settings, insecure_dev=True) as store,
            outgoing() as session,
        ):
            installations = Installations(store, settings, _served(each), session)
            found = await installations.all()
            for team, one in each.items():
                name = f"workspace {team}"
                try:
                    text = await _checked(one, found, installations)
                    yield Check(name, State.GOOD, text)
                except KeyturnError as error:
                    yield Check(name, State.BAD, str(error))
    except KeyturnError as error:
        yield Check("workspaces", State.BAD, str(error))


async def _checked(
    one: Settings, found: Mapping[str, Installation], installations: Installations
) -> str:
    source, page, slack = one.policy, installations.page, one.slack
    load_with_lines(source.read(), str(source.path), under=source.under)
    installation = found.get(slack.team) or found.get(slack.organization)
    if installation is None:
        raise SettingsError(f"The app is not installed there; install it at {page}")
    try:
        await installations.slack_of(installation).test()
    except SlackRefused as error:
        raise SettingsError(
            f"Slack refuses its token with {error.error!r}; install the app again at "
            f"{page}"
        ) from error
    place = slack.team if slack.team in found else slack.organization
    return f"tenant {one.tenant}; installed in {place}; the token works"


def _bot(
    settings: Settings, of: Settings, service: ReviewService, token: str
) -> WorkspaceBot:
    """Return the bot of one workspace, with the app's own settings."""
    slack = settings.slack
    changes = {
        "mode": SlackMode.HTTP,
        "signing_secret": text_of(settings.signing_secret),
        "api_url": slack.api_url,
        "command": slack.command,
        "install_url": f"{slack.url}{INSTALL_PATH}",
    }
    return WorkspaceBot(config_of(of, token, **changes), service)
