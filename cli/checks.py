"""Check settings, store, policy and Slack for ``twokey doctor``."""

from __future__ import annotations

import platform
from collections.abc import AsyncGenerator, Awaitable, Sequence
from urllib.parse import urlsplit

import aiohttp

from twokey.bot.identity import check_one_workspace
from twokey.bot.manifest import DIRECT_MESSAGES, SCOPES
from twokey.bot.web import Slack, SlackBody, SlackError, SlackRefused, text_at
from twokey.cli.audit_checks import check_audit
from twokey.cli.check import Check, State
from twokey.cli.command_context import CommandContext
from twokey.cli.freeze_checks import check_freezes
from twokey.cli.keys import check_keys
from twokey.cli.package_checks import check_packages
from twokey.cli.policy_tools import unknown_names
from twokey.cli.reviewer_checks import check_people
from twokey.cli.security_checks import check_security
from twokey.cli.store_access import nothing_is_here, open_configured
from twokey.cli.webhook_checks import check_webhooks
from twokey.gateway.approvals.requirement import Notify
from twokey.gateway.config import AgentSettings, Settings, SlackMode
from twokey.gateway.errors import SettingsError, TwokeyError
from twokey.gateway.policy.rules import Policy
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graph_audit import check_name, described
from twokey.gateway.resume.graphs import load_graph
from twokey.gateway.running import load_triage
from twokey.gateway.service.away_parts import AwayParts
from twokey.gateway.service.process_check import process_problems
from twokey.gateway.service.reevaluation import dead_ends
from twokey.gateway.store.durability import ensure_durable
from twokey.gateway.store.permissions import ensure_writable
from twokey.gateway.store.readers import longest_backlog
from twokey.gateway.trust.keyring import Keyring

_MAX_NAMED = 3
"""How many calls a sentence names."""

# What a mistake in the set-up leads to; of anything else Slack's own page says more.
_SLACK_ERROR_HELP = {
    "account_inactive": "the app was removed from the workspace: install it again.",
    "channel_not_found": "there is no such channel, or it is private: invite the bot.",
    "invalid_auth": "copy the token again; it may be of another app or revoked.",
    "is_archived": "unarchive the channel, or name another one in the policy.",
    "missing_scope": "install the app again with the manifest: twokey manifest --link",
    "not_allowed_token_type": "this is another kind of token: copy the right one.",
    "not_authed": "copy the token again.",
    "not_in_channel": "type /invite @Twokey in the channel.",
    "token_revoked": "install the app again and copy the new token.",
}


async def run_checks(
    command: CommandContext, *, post: bool, requester: str = ""
) -> AsyncGenerator[Check]:
    """Check one thing after the other; what depends on a bad one is left out.

    Args:
        command: where the settings are.
        post: also post a test message to every channel that the policy names.
        requester: Slack user id of somebody whose requests are looked at.
    """
    yield Check("python", State.GOOD, platform.python_version())
    yield await _run_check("packages", check_packages())
    try:
        settings = command.settings()
    except TwokeyError as error:
        yield Check("settings", State.BAD, str(error))
        return
    yield Check("settings", State.GOOD, _summary(command, settings))
    # A bad policy does not end the checks: the store and Slack do not depend on it, and
    # one run should find as much as it can.
    policy: Policy | None = None
    try:
        policy = command.policy()
    except TwokeyError as error:
        yield Check("policy", State.BAD, str(error))
    else:
        yield Check("policy", State.GOOD, policy.digest)
    if nothing_is_here(command, settings):
        text = f"not looked for: nothing of Twokey is in {str(settings.folder)!r}"
        yield Check("store", State.SKIPPED, text)
    else:
        async for check in _kept_checks(settings, policy):
            yield check
    async for check in _agent_checks(settings, policy):
        yield check
    if settings.triage or (policy and policy.asks_triage):
        yield await _run_check("triage", _triage(settings, policy))
    channels = policy.channels if policy else ()
    tried = channels if post else ()
    async for check in _slack_checks(settings, policy, tried, requester):
        yield check
    if channels and not post:
        text = f"not tried: {', '.join(channels)}; 'twokey doctor --post' tries them."
        yield Check("channels", State.SKIPPED, text)


async def _kept_checks(
    settings: Settings, policy: Policy | None
) -> AsyncGenerator[Check]:
    """Check what is kept; makes what the first start would make, where it is not."""
    yield await _run_check("secret", _secret(settings))
    yield await _run_check("keys", _keys(settings))
    yield _encryption(settings)
    async for check in _store_checks(settings, policy):
        yield check
    yield await _run_check("checkpoints", _checkpoints(settings))


async def _store_checks(
    settings: Settings, policy: Policy | None
) -> AsyncGenerator[Check]:
    store = await _run_check("store", _store(settings))
    yield store
    # Also where servers are away: that is when a freeze may not be everywhere.
    if settings.split_by_agent:
        yield await _run_check("freezes", check_freezes(settings))
    # What depends on a bad check is left out: it would only repeat the same cause.
    if store.state is not State.GOOD:
        return
    if policy:
        yield await _run_check("waiting", _waiting(settings, policy))
    yield await _run_check("processes", _processes(settings))
    yield await _run_check("outbox", _outbox(settings))
    yield await _run_check("audit", check_audit(settings))
    yield await _run_check("security", check_security(settings))
    if settings.webhooks.targets:
        yield await _run_check("webhooks", check_webhooks(settings))


async def _agent_checks(
    settings: Settings, policy: Policy | None
) -> AsyncGenerator[Check]:
    graphs: dict[str, object] = {}
    for name, agent in settings.agents.items():
        work = _graph(settings, agent, policy, graphs, name)
        yield await _run_check(f"agent {name}", work)
    # Of a graph that cannot be loaded the tools are not known.
    if policy and len(graphs) == len(settings.agents):
        unknown = unknown_names(policy, graphs)
        if unknown:
            yield Check("policy", State.SKIPPED, unknown)


async def _run_check(name: str, work: Awaitable[str]) -> Check:
    try:
        return Check(name, State.GOOD, await work)
    except SlackError as error:
        return Check(name, State.BAD, _slack_error_text(error))
    except TwokeyError as error:
        return Check(name, State.BAD, str(error))


def _summary(command: CommandContext, settings: Settings) -> str:
    file = command.settings_file
    where = repr(str(settings.folder / file.name))
    if not file.exists():
        where = f"there is no {file.name!r} in {str(settings.folder)!r}"
    agents = ", ".join(settings.agents) or "none yet"
    slack = f"Slack by {settings.slack.mode}"
    return f"{where}; tenant {settings.tenant}; agents: {agents}; {slack}"


async def _secret(settings: Settings) -> str:
    # It makes the key's file where there is none, as the first start would: that the
    # folder can be written is then known, too.
    settings.secret_keys()
    return "TWOKEY_SECRET" if settings.secret else str(settings.data_dir / "secret.key")


def _encryption(settings: Settings) -> Check:
    """Say whether texts are encrypted; either way is a choice, and no mistake."""
    if settings.encrypt_store:
        return Check("encryption", State.GOOD, "texts are encrypted in the store")
    return Check(
        "encryption",
        State.SKIPPED,
        "off: who can read the store reads arguments and words of people; see "
        "'encrypt_store' (docs/encryption.md)",
    )


async def _keys(settings: Settings) -> str:
    return check_keys(Keyring.of(settings))


async def _store(settings: Settings) -> str:
    url = settings.store_url
    # The host alone: a URL may hold a password.
    place = (urlsplit(url).hostname or urlsplit(url).path) if url else settings.data_dir
    async with open_configured(settings) as store:
        facts = await ensure_durable(store.conn)
        for keys in store.parts_of(settings.tenant):
            await ensure_writable(store.conn, keys)
        masters = len(await store.conn.on_each_master("PING"))
        disk = "its disk and a replica" if store.conn.confirmed_by else "its disk"
    spread = f", in {settings.shards} shards" if settings.shards > 1 else ""
    if settings.split_by_agent:
        spread += f" over which the agents of tenant {settings.tenant!r} are spread"
    if masters > settings.shards:
        spread += (
            f" ({masters} masters, of which {settings.shards} can be used: 'shards' "
            "of a new store may be higher)"
        )
    return f"{facts.name} at {place}{spread}; what it acknowledges is on {disk}"


async def _waiting(settings: Settings, policy: Policy) -> str:
    """Look for waiting calls that nobody can approve by this policy or this version."""
    # Every part is needed here; what a newer version wrote is counted.
    left_out = AwayParts(())
    async with open_configured(settings) as store:
        found = await dead_ends(store, policy, tenant=settings.tenant, away=left_out)
    if count := len(left_out.newer):
        raise SettingsError(
            f"a newer version of Twokey wrote {count} of the approvals that wait; "
            "nobody can decide them while only this one runs. Nothing of them is lost: "
            "run the newer version again, and its 'twokey doctor'."
        )
    if not found:
        return "every call that waits can be approved by somebody"
    named = ", ".join(item.id for item in found[:_MAX_NAMED])
    more = len(found) - _MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    raise SettingsError(
        f"{len(found)} waiting calls can be approved by nobody, since the policy "
        f"changed: {named}{others}. They can be rejected from their cards; or put "
        "the people of before back beside the new ones."
    )


async def _checkpoints(settings: Settings) -> str:
    async with open_checkpoints(settings.checkpoints.get_secret_value()) as saver:
        return type(saver).__name__


async def _processes(settings: Settings) -> str:
    async with open_configured(settings) as store:
        keys = store.keys_of_tenant(settings.tenant)
        problems = await process_problems(store, keys)
        running = (await store.processes.read(keys)).alive.values()
    if problems:
        raise SettingsError(" ".join(problems))
    listed = ", ".join(sorted(f"{one.role} {one.where}" for one, _ in running))
    return listed or "none runs on this store now"


async def _outbox(settings: Settings) -> str:
    async with open_configured(settings) as store:
        found = await longest_backlog(store.conn, store.parts_of(settings.tenant))
    if found.problem:
        raise SettingsError(found.problem)
    return f"{found.events:,} events are kept for its readers"


async def _graph(
    settings: Settings,
    agent: AgentSettings,
    policy: Policy | None,
    loaded: dict[str, object],
    name: str,
) -> str:
    graph = await load_graph(agent.graph, settings.folder, agent.ungated)
    loaded[name] = graph
    check_name(graph, name)
    tools = described(graph, agent.ungated, policy)
    return f"{agent.graph} is a graph of {len(graph.nodes)} nodes; {tools}"


async def _triage(settings: Settings, policy: Policy | None) -> str:
    if await load_triage(settings) is None:
        raise SettingsError(
            "the policy puts calls to triage and there is none, so no opinion counts; "
            "set 'triage' in the settings, or remove it from the policy."
        )
    is_asked = policy is not None and policy.asks_triage
    return f"{settings.triage}{'' if is_asked else '; the policy never asks it'}"


async def _slack_checks(
    settings: Settings, policy: Policy | None, channels: Sequence[str], requester: str
) -> AsyncGenerator[Check]:
    problems = settings.slack_problems()
    for problem in problems:
        yield Check("Slack secrets", State.BAD, problem)
    token = settings.slack_secrets.bot_token
    if token is None:
        return
    async with aiohttp.ClientSession() as session:
        slack = Slack(
            token.get_secret_value(), api_url=settings.slack.api_url, session=session
        )
        try:
            # First and alone: with a bad token every other call would fail for the same
            # reason.
            who, granted = await slack.test()
            check_one_workspace(who)
        except SlackError as error:
            yield Check("Slack bot token", State.BAD, _slack_error_text(error))
            return
        except SettingsError as error:
            yield Check("Slack bot token", State.BAD, str(error))
            return
        text = f"{text_at(who, 'user')} in {text_at(who, 'team')}"
        yield Check("Slack bot token", State.GOOD, f"{text} ({text_at(who, 'url')})")
        yield _scopes(granted, policy)
        app_token = settings.slack_secrets.app_token
        if settings.slack.mode is SlackMode.SOCKET and app_token is not None:
            work = _app_token(slack, app_token.get_secret_value())
            yield await _run_check("Slack app token", work)
        if policy is not None:
            async for check in _people(slack, policy, who, requester):
                yield check
        for channel in channels:
            yield await _run_check(f"channel {channel}", _channel(slack, channel))


async def _people(
    slack: Slack, policy: Policy, who: SlackBody, requester: str
) -> AsyncGenerator[Check]:
    team, enterprise = text_at(who, "team_id"), text_at(who, "enterprise_id")
    try:
        async for one in check_people(
            slack, policy, team=team, enterprise=enterprise, requester=requester
        ):
            yield one
    except SlackError as error:
        yield Check("people", State.BAD, _slack_error_text(error))


def _scopes(granted: frozenset[str], policy: Policy | None) -> Check:
    is_direct = policy is None or Notify.DM in policy.notifying
    needed = [one for one in SCOPES if is_direct or one != DIRECT_MESSAGES]
    missing = [one for one in needed if one not in granted]
    # Slack's header may be missing; that is not the same as no scope.
    if not granted:
        state, text = State.SKIPPED, "Slack did not say which are granted."
    elif missing:
        state = State.BAD
        text = (
            f"the app lacks {', '.join(missing)}; add them on its page "
            "'OAuth & Permissions' and install it again."
        )
    else:
        more = ", ".join(sorted(granted - set(SCOPES)))
        state = State.GOOD
        text = f"all are granted; not needed: {more}" if more else "all are granted"
    return Check("Slack scopes", state, text)


async def _app_token(slack: Slack, token: str) -> str:
    await slack.open_socket(token)
    return "Socket Mode opens"


async def _channel(slack: Slack, channel: str) -> str:
    # A real message, since Slack cannot be asked whether it would take one.
    text = "Twokey can post its approval cards here."
    await slack.call("chat.postMessage", channel=channel, text=text)
    return "a test message was posted"


def _slack_error_text(error: SlackError) -> str:
    if not isinstance(error, SlackRefused):
        return (
            f"{error} Check the network, a proxy, 'slack.api_url', and the clock of "
            "this machine."
        )
    default = "see https://docs.slack.dev/reference/methods for what it means."
    return (
        f"Slack refuses {error.method} with {error.error!r}: "
        f"{_SLACK_ERROR_HELP.get(error.error, default)}"
    )
