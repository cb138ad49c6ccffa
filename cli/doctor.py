"""Diagnose the setup: find what is missing or wrong, and how to fix it."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint

from keyturn.bot import web
from keyturn.bot.manifest import DIRECT_MESSAGES, SCOPES
from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import flag, option
from keyturn.cli.keys import check_keys
from keyturn.cli.reviewer_checks import (
    Check,
    State,
    absent_ungated,
    check_people,
    unknown_names,
)
from keyturn.cli.server_checks import check_servers
from keyturn.cli.store_access import nothing_is_here, open_configured
from keyturn.cli.workspaces import check_workspaces
from keyturn.connect.claude_settings import problems
from keyturn.gateway import errors, failures
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.approvals.requirement import Notify
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.config import AgentSettings, Settings, SlackMode
from keyturn.gateway.embed import load_triage, own_gate_of
from keyturn.gateway.failures import any_failure
from keyturn.gateway.policy.evaluate import listed_tier
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import parse_object
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import check_name, described, load_graph
from keyturn.gateway.service.people.queue import dead_ends
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.service.report.audit_writing import public_keys, required
from keyturn.gateway.service.report.process_check import process_problems
from keyturn.gateway.store.audit.files import TreeFiles
from keyturn.gateway.store.audit.log import is_overdue
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.connection.durability import ensure_durable, ensure_writable
from keyturn.gateway.store.events.outbox import backlog
from keyturn.gateway.store.http.webhooks import receiver_state
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring

_PRINT = {State.GOOD: console.good, State.BAD: console.bad, State.SKIPPED: console.note}


def doctor(
    ctx: typer.Context,
    *,
    post: Annotated[
        bool, flag("--post", "Post a test message to each channel.")
    ] = False,
    claude_settings: Annotated[
        Path | None,
        option(
            "FILE", "Check only these settings of Claude Code: do they ask about calls?"
        ),
    ] = None,
    json: console.AsJson = False,
) -> None:
    """Check every part, and explain how to fix each problem.

    Examples:
      keyturn doctor                           check everything, post nothing
      keyturn doctor --post                    also post to each channel
      keyturn doctor --claude-settings FILE    only these settings
      keyturn --config prod.yml doctor --json  for a machine; exit code 1 if bad
    """
    found = run_checks(command_context(ctx), post=post)
    if claude_settings is not None:
        found = _of_claude(claude_settings)
    checks = asyncio.run(_examined(found, is_printed=not json))
    is_bad = any(check.state is State.BAD for check in checks)
    if json:
        console.as_json({"ok": not is_bad, "checks": [*map(asdict, checks)]})
    if is_bad:
        raise typer.Exit(1)


async def _of_claude(file: Path) -> AsyncGenerator[Check]:
    """Check the settings of Claude Code.

    Raises:
        SettingsError: when they cannot be read.
    """
    text = console.read_text(file, "the settings of Claude Code")
    try:
        found = problems(parse_object(text))
    except errors.BadJson as error:
        raise errors.SettingsError(f"{str(file)!r}: {error}") from error
    good = "Claude Code asks about every call, and runs none while Keyturn is away."
    for one in found or [good]:
        yield Check("claude-settings", State.BAD if found else State.GOOD, one)


async def _examined(found: AsyncGenerator[Check], *, is_printed: bool) -> list[Check]:
    checks: list[Check] = []
    # Printed as each one ends: a policy with many people takes a request for each of
    # them, and a silent terminal would look as if it hung.
    async for check in found:
        checks.append(check)
        if is_printed:
            _PRINT[check.state](f"{check.name}: {check.text}")
    return checks


OVERDUE = (
    "Entries of the audit log have waited for their checkpoint for more than ten "
    "minutes. Nothing is lost: they stay in the store. See 'audit.not_written' in the "
    "log of the gateways: the folder is full, read-only, gone or of another user."
)


async def _audit(store: Store, setup: _Setup) -> str:
    """Return where the audit log is, and how much of it is signed.

    Raises:
        AuditUnreadable: when segments or the tree do not match their signatures, or new
            entries are not being signed.
    """
    keys = store.keys_of_tenant(setup.settings.tenant)
    # Without a gateway, entries wait for its start.
    running = (await store.processes.read(keys)).alive.values()
    is_served = any(one.role == "gateway" for one, _ in running)
    if is_served and await is_overdue(store.conn, keys):
        raise errors.AuditUnreadable(OVERDUE)
    log = store.audit(keys)
    left = number(await store.conn.command("XLEN", keys.audit))
    # Raises if entries have left the store for another folder.
    await log.end()
    signed = await asyncio.to_thread(_signed, store, setup.settings.tenant)
    return f"{left:,} entries are in the store; {signed:,} are signed"


def _signed(store: Store, tenant: str) -> int:
    keyring, folder = required(store)
    files = TreeFiles(folder, tenant)
    # None: another gateway may have the tree in another folder.
    return files.checked(files.notes(), public_keys(keyring))[0].size


_AT_ONCE = 4


async def check_checkpoints(place: str) -> str:
    """Write and read threads concurrently, as runs do; return the kind of database.

    Raises:
        SettingsError: it cannot be used.
    """
    async with open_checkpoints(place) as saver:
        await asyncio.gather(*(_write_and_read(saver) for _ in range(_AT_ONCE)))
        is_pooled = getattr(saver, "supports_pipeline", True) is False
        return type(saver).__name__ + (" behind a pooler" if is_pooled else "")


async def _write_and_read(saver: BaseCheckpointSaver[Any]) -> None:
    config: RunnableConfig = {
        "configurable": {
            "thread_id": f"keyturn-doctor-{secrets.token_hex(8)}",
            "checkpoint_ns": "",
        }
    }
    try:
        kept = await saver.aput(config, empty_checkpoint(), {}, {})
        await saver.aput_writes(kept, [("channel", "value")], "task")
        found = await saver.aget_tuple(config)
        await saver.adelete_thread(config["configurable"]["thread_id"])
    except Exception as error:
        raise errors.SettingsError(
            f"the database opens, but a run cannot use it ({type(error).__name__}); "
            "check the rights of its user, and any pooler in front of it."
        ) from error
    if found is None or not found.pending_writes:
        raise errors.SettingsError("the database does not return the written data.")


async def _webhooks(store: Store, setup: _Setup) -> str:
    """Return the number of targets, none of which fails.

    Raises:
        SettingsError: names those that fail.
    """
    settings, failing = setup.settings, list[str]()
    if not settings.webhooks.targets:
        return ""
    for name in settings.webhooks.targets:
        one = await receiver_state(store, settings.tenant, name)
        if one.failing_ms is not None:
            failing.append(f"{name} (last with {one.error!r})")
    if failing:
        raise errors.SettingsError(
            f"messages do not arrive: {'; '.join(failing)}. 'keyturn webhooks test "
            "NAME' tries one."
        )
    return f"targets: {len(settings.webhooks.targets)}; no message has failed"


_PERIOD_MS = 7 * 86_400_000


async def _security(store: Store, setup: _Setup) -> str:
    """Return a text if there were no announced security events.

    Raises:
        SettingsError: names the security events.
    """
    tenant = setup.settings.tenant
    now_ms = await store.conn.now_ms(store.keys_of_tenant(tenant).audit)
    since_ms = max(0, now_ms - _PERIOD_MS)
    events = security_events(store, tenant, since_ms=since_ms)
    found = Counter([event.reason async for event in events])
    announced = {one.value for one in SecurityKind if one.is_announced} & found.keys()
    if announced:
        named = ", ".join(f"{kind} ({found[kind]})" for kind in sorted(announced))
        raise errors.SettingsError(
            f"events of the last week: {named}. 'keyturn security' lists them; "
            "'Security events' in docs/failures.md has the remedy of each kind."
        )
    return "nothing was forged or replayed in the last week"


_MAX_NAMED = 10
"""How many calls a sentence names."""

# Advice for setup mistakes; Slack's page explains all other errors.
_SLACK_ERROR_HELP = {
    "account_inactive": "the app was removed from the workspace: install it again.",
    "channel_not_found": "there is no such channel, or it is private: invite the bot.",
    "invalid_auth": "copy the token again; it may be of another app or revoked.",
    "is_archived": "unarchive the channel, or name another one in the policy.",
    "missing_scope": "install the app again with the manifest: keyturn manifest --link",
    "not_allowed_token_type": "this is another kind of token: copy the right one.",
    "not_authed": "copy the token again.",
    "not_in_channel": "type /invite @Keyturn in the channel.",
    "token_revoked": "install the app again and copy the new token.",
}


@dataclass(frozen=True)
class _Setup:
    """The setup under check; ``policy`` is None if it cannot be loaded."""

    command: CommandContext
    settings: Settings
    policy: Policy | None
    post: bool


async def run_checks(command: CommandContext, *, post: bool) -> AsyncGenerator[Check]:
    """Yield the checks in order; checks that depend on a failed one are skipped.

    Args:
        command: the source of the settings.
        post: also post a test message to every channel of the policy.
    """
    yield Check("python", State.GOOD, platform.python_version())
    try:
        settings = command.settings()
    except errors.KeyturnError as error:
        yield Check("settings", State.BAD, str(error))
        return
    yield Check("settings", State.GOOD, _summary(command, settings))
    # A bad policy does not end the checks: the store and Slack do not depend on it, and
    # one run should find as much as possible.
    policy: Policy | None = None
    try:
        policy = command.policy()
    except errors.KeyturnError as error:
        # Of several workspaces, each has its own policy.
        if not settings.slack.workspaces:
            yield Check("policy", State.BAD, str(error))
    else:
        yield Check("policy", State.GOOD, policy.digest)
    setup = _Setup(command, settings, policy, post)
    for name, part in PARTS.items():
        # A crash ends only its part.
        try:
            async for check in part(setup):
                yield check
        except any_failure() as error:
            yield _crashed(name, error)


async def _stored(setup: _Setup) -> AsyncGenerator[Check]:
    """Check stored data; creates missing files like the first start does."""
    settings = setup.settings
    if nothing_is_here(setup.command, settings):
        text = f"skipped: {str(settings.folder)!r} contains no files of Keyturn"
        yield Check("store", State.SKIPPED, text)
        return
    yield await _run_check("secret", _secret(settings))
    yield await _run_check("keys", _keys(settings))
    try:
        keyring = Keyring.of(settings)
        async with open_configured(settings, keyring=keyring) as store:
            found = await _run_check("store", _store(store, settings))
            yield found
            # Checks that depend on a bad one would repeat the same cause.
            is_good = found.state is State.GOOD
            for name, check in STORE_CHECKS.items() if is_good else ():
                one = await _run_check(name, check(store, setup))
                if one.text:
                    yield one
    except errors.KeyturnError as error:
        yield Check("store", State.BAD, str(error))
    place = settings.checkpoint_place
    yield await _run_check("checkpoints", check_checkpoints(place))


async def _agents(setup: _Setup) -> AsyncGenerator[Check]:
    graphs: dict[str, object] = {}
    for name, agent in setup.settings.agents.items():
        work = _graph(setup.settings, agent, setup.policy, graphs, name)
        yield await _run_check(f"agent {name}", work)
        if name in graphs and (absent := absent_ungated(graphs[name], agent.ungated)):
            yield Check(f"agent {name}", State.SKIPPED, absent)
    # If a graph cannot be loaded, its tools are unknown.
    is_whole = len(graphs) == len(setup.settings.agents)
    # The tools of agents on a server are unknown, too.
    if setup.policy and is_whole and not setup.settings.servers:
        unknown = unknown_names(setup.policy, graphs)
        if unknown:
            yield Check("policy", State.SKIPPED, unknown)


async def _run_check(name: str, work: Awaitable[str]) -> Check:
    try:
        return Check(name, State.GOOD, await work)
    except errors.KeyturnError as error:
        return Check(name, State.BAD, _error_text(error))
    except any_failure() as error:
        return _crashed(name, error)


def _crashed(name: str, error: BaseException) -> Check:
    why = failures.described(error)
    text = f"this check crashed, so its result is unknown; please report it: {why}"
    return Check(name, State.BAD, errors.remedy(error) or text)


def _summary(command: CommandContext, settings: Settings) -> str:
    file = command.settings_file
    where = repr(str(settings.folder / file.name))
    if not file.exists():
        where = f"there is no {file.name!r} in {str(settings.folder)!r}"
    agents = ", ".join(settings.agent_names) or "none yet"
    slack = f"Slack by {settings.slack.mode}"
    return f"{where}; tenant {settings.tenant}; agents: {agents}; {slack}"


async def _keys(settings: Settings) -> str:
    return check_keys(Keyring.of(settings))


async def _secret(settings: Settings) -> str:
    # Makes a missing key file, like the first start, and so also tests that the folder
    # is writable.
    settings.secret_keys()
    return (
        "KEYTURN_SECRET" if settings.secret else str(settings.data_dir / "secret.key")
    )


async def _store(store: Store, settings: Settings) -> str:
    url = settings.store_url
    # Only the host: a URL may contain a password.
    place = (urlsplit(url).hostname or urlsplit(url).path) if url else settings.data_dir
    facts = await ensure_durable(store.conn)
    await ensure_writable(store.conn, store.keys_of_tenant(settings.tenant))
    disk = "its disk and a replica" if store.conn.confirmed_by else "its disk"
    return f"{facts.name} at {place}; acknowledged writes are on {disk}"


async def _waiting(store: Store, setup: _Setup) -> str:
    """Look for waiting calls that no reviewer can approve under this policy."""
    if setup.policy is None:
        return ""
    found = await dead_ends(store, setup.policy, tenant=setup.settings.tenant)
    if not found:
        return "every waiting call can be approved"
    named = ", ".join(item.id for item in found[:_MAX_NAMED])
    raise errors.SettingsError(
        f"{len(found)} waiting calls can no longer be approved, because the policy "
        f"changed, such as {named}. Reject them from their cards, or add the earlier "
        "reviewers to the policy again."
    )


async def _processes(store: Store, setup: _Setup) -> str:
    keys = store.keys_of_tenant(setup.settings.tenant)
    problems = await process_problems(store, keys)
    if problems:
        raise errors.SettingsError(" ".join(problems))
    running = (await store.processes.read(keys)).alive.values()
    listed = ", ".join(sorted(f"{one.role} {one.where}" for one, _ in running))
    return listed or "none is running on this store"


async def _outbox(store: Store, setup: _Setup) -> str:
    found = await backlog(store.conn, store.keys_of_tenant(setup.settings.tenant))
    if found.problem:
        raise errors.SettingsError(found.problem)
    return f"{found.events:,} events are kept for its readers"


STORE_CHECKS: dict[str, Callable[[Store, _Setup], Awaitable[str]]] = {
    "waiting": _waiting,
    "processes": _processes,
    "outbox": _outbox,
    "audit": _audit,
    "security": _security,
    "webhooks": _webhooks,
}
"""The checks of an open store; an empty text means that one does not apply."""


async def _graph(
    settings: Settings,
    agent: AgentSettings,
    policy: Policy | None,
    loaded: dict[str, object],
    name: str,
) -> str:
    own_gate = own_gate_of(name, policy) if agent.own_gate else None
    graph = await load_graph(agent.graph, settings.folder, agent.ungated, own_gate)
    loaded[name] = graph
    check_name(graph, name)

    def is_free(gate: str, tool: str) -> bool:
        return policy is not None and (
            listed_tier(policy, agent=gate or name, tool=tool).is_auto_approved
        )

    tools = described(graph, agent.ungated, is_free)
    return f"{agent.graph} is a graph of {len(graph.nodes)} nodes; {tools}"


async def _triage(setup: _Setup) -> AsyncGenerator[Check]:
    is_asked = setup.policy is not None and setup.policy.asks_triage
    if is_asked or setup.settings.triage:
        yield await _run_check("triage", _loaded(setup.settings, is_asked=is_asked))


async def _loaded(settings: Settings, *, is_asked: bool) -> str:
    if await load_triage(settings) is None:
        raise errors.SettingsError(
            "the policy uses triage but none is configured, so no opinion counts; set "
            "'triage' in the settings, or remove it from the policy."
        )
    return f"{settings.triage}{'' if is_asked else '; the policy never asks it'}"


async def _slack(setup: _Setup) -> AsyncGenerator[Check]:
    settings, policy = setup.settings, setup.policy
    problems = settings.slack_problems()
    for problem in problems:
        yield Check("Slack secrets", State.BAD, problem)
    if settings.slack.workspaces:
        async for check in check_workspaces(settings, setup.command.env):
            yield check
        return
    token = settings.bot_token
    if token is None:
        return
    async with outgoing() as session:
        slack = web.Slack(
            token.get_secret_value(), api_url=settings.slack.api_url, session=session
        )
        try:
            # First and alone: with a bad token every other call would fail for the same
            # reason.
            who, granted = await slack.test()
            web.check_one_workspace(who)
        except (web.SlackError, errors.SettingsError) as error:
            yield Check("Slack bot token", State.BAD, _error_text(error))
            return
        text = f"{web.text_at(who, 'user')} in {web.text_at(who, 'team')}"
        yield Check(
            "Slack bot token", State.GOOD, f"{text} ({web.text_at(who, 'url')})"
        )
        yield _scopes(granted, policy)
        app_token = settings.app_token
        if settings.slack.mode is SlackMode.SOCKET and app_token is not None:
            work = slack.open_socket(app_token.get_secret_value())
            yield await _run_check("Slack app token", _done(work, "Socket Mode opens"))
        if policy is not None:
            async for check in _people(slack, policy, who):
                yield check
            for channel in policy.channels:
                yield await _channel(slack, channel, post=setup.post)


async def _channel(slack: web.Slack, channel: str, *, post: bool) -> Check:
    if not post:
        text = "not tried: 'keyturn doctor --post' posts a test message."
        return Check(f"channel {channel}", State.SKIPPED, text)
    # A real message, because Slack offers no way to test a post.
    text = "Keyturn can post its approval cards here."
    posting = slack.call("chat.postMessage", channel=channel, text=text)
    done = _done(posting, "a test message was posted")
    return await _run_check(f"channel {channel}", done)


async def _people(
    slack: web.Slack, policy: Policy, who: web.SlackBody
) -> AsyncGenerator[Check]:
    team, enterprise = web.text_at(who, "team_id"), web.text_at(who, "enterprise_id")
    try:
        async for one in check_people(slack, policy, team=team, enterprise=enterprise):
            yield one
    except web.SlackError as error:
        yield Check("people", State.BAD, _error_text(error))


def _scopes(granted: frozenset[str], policy: Policy | None) -> Check:
    is_direct = policy is None or Notify.DM in policy.notifying
    needed = [one for one in SCOPES if is_direct or one != DIRECT_MESSAGES]
    missing = [one for one in needed if one not in granted]
    # Slack's header may be missing, which does not mean that there are no scopes.
    if not granted:
        text = "Slack did not return the granted scopes."
        return Check("Slack scopes", State.SKIPPED, text)
    if not missing:
        return Check("Slack scopes", State.GOOD, "all are granted")
    text = (
        f"the app lacks {', '.join(missing)}; add them on its page 'OAuth & "
        "Permissions' and install it again."
    )
    return Check("Slack scopes", State.BAD, text)


async def _done(work: Awaitable[object], text: str) -> str:
    await work
    return text


PARTS: dict[str, Callable[[_Setup], AsyncGenerator[Check]]] = {
    "store": _stored,
    "agents": _agents,
    "servers": lambda setup: check_servers(setup.settings),
    "triage": _triage,
    "Slack": _slack,
}
"""The parts of the setup, in the order of their checks."""


def _error_text(error: errors.KeyturnError) -> str:
    if not isinstance(error, web.SlackError):
        return str(error)
    if not isinstance(error, web.SlackRefused):
        return (
            f"{error} Check the network, a proxy, 'slack.api_url', and the clock of "
            "this machine."
        )
    default = "https://docs.slack.dev/reference/methods explains it."
    return (
        f"Slack refuses {error.method} with {error.error!r}: "
        f"{_SLACK_ERROR_HELP.get(error.error, default)}"
    )
