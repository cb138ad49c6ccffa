"""Start a sandbox Slack and a whole stack, for the demo and end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from keyturn.cli.sandbox import only_user
from keyturn.cli.stack import Stack, open_stack
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.key_settings import KeySettings
from keyturn.gateway.secret_file import make_private
from keyturn.sandbox.records import Suggestion
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.workspace import Workspace

KEPT = "sandbox.json"
"""The file in the data folder in which the sandbox is kept."""

CHANNEL = "C0APPROVALS"
REQUESTER = "U0DAN"
REVIEWER = "U0ANA"
SENIOR = "U0CHLOE"
FIRST_REQUEST = "@keyturn refund order 78291"

QUEUED = tuple(f"@keyturn refund order {79001 + n}" for n in range(20))
"""Requests of as many customers, each in a thread of its own."""

# By Dan: nobody may approve their own request, and the page is shown as Ana.
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
        ("fill the queue (20 refunds)", "\n".join(QUEUED)),
    )
)


@dataclass(frozen=True)
class DemoStack:
    """A sandbox Slack with a stack that serves it."""

    sandbox: Sandbox
    stack: Stack


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
    """Start the sandbox and everything else on this machine.

    Args:
        config: the settings file that names the agents and the policy.
        data_dir: where everything is kept from one run to the next.
        port: of the page; 0 takes any free one.
        mode: how the sandbox delivers to the bot.
        env: settings from the environment over the file.
        is_kept: keep the sandbox's messages in ``data_dir``, too.
        seed: adds to the workspace before anybody comes.
        suggestions: what the page offers to ask.

    Raises:
        SettingsError: when the page's port is taken, ``data_dir`` cannot be made, what
            the sandbox kept there cannot be read, or another process keeps it there.
        KeyturnError: as `open_stack`.
    """
    state_path = _made(data_dir) / KEPT if is_kept else None
    sandbox = Sandbox(port=port, suggestions=suggestions, state_path=state_path)
    async with AsyncExitStack() as opening:
        lock = opening.enter_context(only_user(state_path)) if state_path else None
        try:
            await opening.enter_async_context(sandbox)
        except OSError as error:
            # An OSError with a file name is about the saved messages; without one it is
            # the port.
            if error.filename:
                raise SettingsError(f"{error.filename!r}: {error.strerror}") from error
            raise SettingsError(
                f"The page cannot be shown on port {port}. Stop what listens there, or "
                "choose another port with --port (0: any that is free)."
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
            # Only now is the port of the bot known: it takes any free one.
            sandbox.deliver_http(stack.bot.url)
        yield DemoStack(sandbox, stack)


def _isolated(settings: Settings, data_dir: Path) -> Settings:
    """Keep a sandbox away from the store and the checkpoints of production."""
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
    """Return the settings from the environment that point a stack at a sandbox."""
    return {
        # First, so that nothing in the caller's environment can point the demo at a
        # real workspace.
        **(env or {}),
        "KEYTURN_DATA_DIR": str(data_dir.absolute()),
        "KEYTURN_SLACK_MODE": mode.value,
        "KEYTURN_SLACK_API_URL": sandbox.api_url,
        "KEYTURN_SLACK_PORT": "0",
        "SLACK_BOT_TOKEN": sandbox.bot_token,
        "SLACK_APP_TOKEN": sandbox.app_token,
        "SLACK_SIGNING_SECRET": sandbox.signing_secret,
    }
