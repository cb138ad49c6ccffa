"""Start a sandbox Slack and a whole stack, for the demo and end-to-end tests.

The sandbox can be seeded with the people and channels of a policy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import typer
from pydantic import JsonValue, SecretStr

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext
from keyturn.cli.sandbox import only_user
from keyturn.cli.stack import Stack, open_stack
from keyturn.cli.stop_signals import until_stopped
from keyturn.cli.store_access import SANDBOX_FOLDER
from keyturn.gateway.config import DEFAULT_FILE, Settings, SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.logs import write_logs
from keyturn.gateway.policy.fields import is_user_id, is_usergroup_id
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.secret_file import make_private
from keyturn.gateway.setting_forms import KeySettings
from keyturn.sandbox.records import Channel, Suggestion, User, UserGroup
from keyturn.sandbox.samples import ANA, BEN, CHLOE, TEAM
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.workspace import Workspace

KEPT = "sandbox.json"
"""The file in the data folder with the sandbox's state."""

CHANNEL = "C0APPROVALS"
REQUESTER = "U0DAN"
REVIEWER = "U0ANA"
SENIOR = "U0CHLOE"
FIRST_REQUEST = "@keyturn refund order 78291"

STOCK_REQUEST = "@keyturn crm cancel order 78304"
"""To the agent that asks with LangChain's own middleware."""

MCP_REQUEST = "MCP client: refund order 78377"
"""Does not mention the bot: the demo's MCP client makes a call for it."""

HAS_MCP = find_spec("mcp_types") is not None
"""Whether the packages of the extra are installed, in a release that the gate knows."""

QUEUED = tuple(f"@keyturn refund order {79001 + n}" for n in range(20))
"""Requests of as many customers, each in a separate thread."""

# From Dan: people may not approve their own requests, and the page is shown as Ana.
SUGGESTIONS = tuple(
    Suggestion(label=label, text=text, channel=CHANNEL, user=REQUESTER)
    for label, text in (
        ("refund order 78291", FIRST_REQUEST),
        ("do several things at once", f"{FIRST_REQUEST} and do everything else"),
        ("refund order 78420 (two people)", "@keyturn refund order 78420"),
        ("change an address", "@keyturn change the address of order 78304"),
        ("send an e-mail", "@keyturn mail the customer of order 78377"),
        ("look up an order (needs nobody)", "@keyturn look up order 78377"),
        ("refund 56 recalled lamps at once", "@keyturn refund every recalled lamp"),
        ("move an order (the agent asks)", "@keyturn move order 78304"),
        ("cancel order 78304 (stock agent)", STOCK_REQUEST),
        *([("refund order 78377 (MCP client)", MCP_REQUEST)] if HAS_MCP else []),
        ("fill the queue (20 refunds)", "\n".join(QUEUED)),
    )
)


@dataclass(frozen=True)
class DemoStack:
    """A sandbox Slack with a connected stack, and its settings."""

    sandbox: Sandbox
    stack: Stack
    settings: Settings


@asynccontextmanager
async def open_demo_stack(
    config: Path,
    data_dir: Path,
    *,
    port: int = 0,
    mode: SlackMode = SlackMode.SOCKET,
    env: Mapping[str, str] | None = None,
    is_kept: bool = True,
    seed: Callable[[Workspace], object] = lambda _: None,
    suggestions: Sequence[Suggestion] = SUGGESTIONS,
) -> AsyncGenerator[DemoStack]:
    """Start the sandbox and the stack on this machine.

    Args:
        config: the settings file with the agents and the policy.
        data_dir: the folder for all data that outlives a run.
        port: the page's port; 0 for any free one.
        mode: how the sandbox delivers to the bot.
        env: environment variables, which override the file.
        is_kept: also keep the sandbox's messages in ``data_dir``.
        seed: adds to the workspace before the stack starts.
        suggestions: the requests that the page suggests.

    Raises:
        SettingsError: when the page's port is taken, ``data_dir`` cannot be made, or
            the saved sandbox there cannot be read or is in use by another process.
        KeyturnError: as `open_stack`.
    """
    state_path = _made(data_dir) / KEPT if is_kept else None
    sandbox = Sandbox(port=port, suggestions=suggestions, state_path=state_path)
    async with AsyncExitStack() as opening:
        lock = opening.enter_context(only_user(state_path)) if state_path else None
        try:
            await opening.enter_async_context(sandbox)
        except OSError as error:
            # An OSError with a file name concerns the saved messages; otherwise the
            # port.
            if error.filename:
                raise SettingsError(f"{error.filename!r}: {error.strerror}") from error
            raise SettingsError(
                f"The page cannot be shown on port {port}. Stop the process that "
                "listens there, or choose another port with --port (0: any free one)."
            ) from error
        except ValueError as error:  # a damaged file
            raise SettingsError(str(error)) from error
        if lock:
            lock.write(f"{sandbox.url}/")
        # Before the stack starts: the bot looks up the policy's people at its first
        # card.
        seed(sandbox.workspace)
        pointed = environment(sandbox, data_dir, mode, env)
        own_port = Settings.load(config, env or {}).slack.port
        if own_port is not None:
            pointed["KEYTURN_SLACK_PORT"] = str(own_port)
        settings = Settings.load(config, pointed)
        settings = _isolated(settings, data_dir)
        stack = await opening.enter_async_context(open_stack(settings))
        if mode is SlackMode.HTTP:
            # Only now is the bot's port known: it uses any free one.
            sandbox.deliver_http(stack.bot.url)
        yield DemoStack(sandbox, stack, settings)


async def run_in_sandbox(command: CommandContext, port: int) -> None:
    """Run the agents of the settings beside a sandbox until the process is stopped."""
    settings, policy = command.settings(), command.policy()
    # This log is for a developer, who needs the texts of agents' errors, and it cannot
    # contain production data.
    write_logs(settings.log, shows_errors=True)
    async with open_demo_stack(
        command.config or DEFAULT_FILE,
        settings.data_dir / SANDBOX_FOLDER,
        port=port,
        env=command.env,
        seed=partial(seed, policy=policy),
        # The demo's suggestions concern its sample agent; here other agents run.
        suggestions=(),
    ) as demo:
        spare_what_is_there()
        url = f"{demo.sandbox.url}/?user={REQUESTER}"
        agents = ", ".join(settings.agent_names) or "none in keyturn.yml"
        console.good(f"A local Slack: {typer.style(url, bold=True)}")
        console.good(f"Agents: {agents}. You are Dan; ask with '@keyturn ...'.")
        for line in holders(policy, demo.sandbox.workspace):
            console.note(line)
        console.note("Switch to one of them to decide.")
        # Otherwise another command would open the store of `keyturn run`, and make, for
        # example, an API key that this gateway refuses.
        console.note(
            "Commands for it, in another terminal: "
            f"KEYTURN_DATA_DIR={settings.data_dir / SANDBOX_FOLDER} keyturn …"
        )
        console.note("Ctrl+C stops everything.")
        await until_stopped(demo.stack.keyturn.store)


def _isolated(settings: Settings, data_dir: Path) -> Settings:
    """Separate a sandbox from the store and the checkpoints of production."""
    checkpoints = SecretStr(str(data_dir.absolute() / "checkpoints.sqlite"))
    apart = {"redis_url": None, "checkpoints": checkpoints, "keys": KeySettings()}
    return settings.model_copy(update=apart)


def _made(folder: Path) -> Path:
    try:
        make_private(folder)
    except OSError as error:
        raise SettingsError(
            f"The folder {str(folder)!r} cannot be made ({error.strerror}). Start this "
            "where this user can write, or set 'data_dir'."
        ) from error
    return folder


def environment(
    sandbox: Sandbox, data_dir: Path, mode: SlackMode, env: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the environment that points a stack at a sandbox."""
    return {
        # First, so that the caller's environment cannot point the demo at a real
        # workspace.
        **(env or {}),
        "KEYTURN_DATA_DIR": str(data_dir.absolute()),
        "KEYTURN_SLACK_MODE": mode.value,
        "KEYTURN_SLACK_API_URL": sandbox.api_url,
        "KEYTURN_SLACK_PORT": "0",
        "SLACK_BOT_TOKEN": sandbox.bot_token,
        "SLACK_APP_TOKEN": sandbox.app_token,
        "SLACK_SIGNING_SECRET": sandbox.signing_secret,
    }


def seed(workspace: Workspace, policy: Policy) -> None:
    """Give every role of a policy to people of a sample workspace.

    Missing people, user groups and channels are added under the policy's ids. All users
    join the policy's channels. Groups of the first role contain Ana and Ben, those of
    all later roles contain Chloé, so that the first and the later deciders differ.
    """
    later = [rule.usergroups for rule in list(policy.roles.values())[1:]]
    of_chloe = {group for groups in later for group in groups}
    # Ids appear in many keys of a policy. Another text in capitals with their form (a
    # reason "URGENT") adds an unused person, which is harmless in a sandbox.
    for text in _strings(cast("JsonValue", policy.model_dump(mode="json"))):
        if is_user_id(text) and text not in workspace.users:
            workspace.put_user(_person(text))
            workspace.direct_message(text)
        elif is_usergroup_id(text) and text not in workspace.groups:
            people = (CHLOE.id,) if text in of_chloe else (ANA.id, BEN.id)
            workspace.put_group(UserGroup(text, text.lower(), text, people))
    for name in policy.channels:
        _open_channel(workspace, name)


def holders(policy: Policy, workspace: Workspace) -> list[str]:
    """Return a line for each role with its people in the sandbox."""
    lines: list[str] = []
    for name, rule in policy.roles.items():
        groups = [workspace.groups[group].users for group in rule.usergroups]
        ids = dict.fromkeys(
            (*rule.users, *(user for users in groups for user in users))
        )
        people = ", ".join(workspace.users[each].real_name for each in ids)
        lines.append(f"{name}: {people or 'nobody'}")
    return lines


def _open_channel(workspace: Workspace, name: str) -> None:
    """Add a channel unless it exists, and let all users join it."""
    handle = name.removeprefix("#")
    known = {
        one.id
        for one in workspace.channels.values()
        if name in {one.id, f"#{one.name}"}
    }
    people = {user.id for user in workspace.users.values() if not user.deleted}
    if not known:
        # If a policy names a channel by its id, the sandbox uses that id.
        number = f"C0{len(workspace.channels):04}NEW" if name.startswith("#") else name
        workspace.put_channel(Channel(number, handle.lower(), frozenset(people)))
    for channel in known:
        for user in people - workspace.channels[channel].members:
            workspace.join(channel, user)


def _person(user_id: str) -> User:
    name = user_id[1:].lstrip("0").lower() or user_id.lower()
    return User(user_id, name, name.title(), TEAM)


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
