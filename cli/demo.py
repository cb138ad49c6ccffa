"""Run the demo on this machine: a page to click in, or a script with JSON events."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from keyturn.cli import demo_stack
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import flag, option, port_option
from keyturn.cli.demo_context import DemoContext
from keyturn.cli.demo_mcp import mcp_on_page
from keyturn.cli.demo_scripts import SCRIPTS, announce_digest, policy_for
from keyturn.cli.samples import sample_settings
from keyturn.cli.sandbox import only_user
from keyturn.cli.stop_signals import serve, until_stopped
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.errors import KeyturnError, SettingsError

PORT = 8765
FOLDER = Path(".keyturn/demo")
LEDGER = "KEYTURN_DEMO_LEDGER"
OUTAGE = "KEYTURN_DEMO_OUTAGE"
SAMPLE = "support"


def demo(
    ctx: typer.Context,
    script: Annotated[
        str | None, option("SCRIPT", f"Play a script and end: {', '.join(SCRIPTS)}.")
    ] = None,
    port: Annotated[int, port_option("Port of the page")] = PORT,
    mode: Annotated[
        SlackMode, typer.Option(help="How the sandbox reaches the bot.")
    ] = SlackMode.SOCKET,
    *,
    as_json: Annotated[bool, flag("--json", "Print one JSON line a step.")] = False,
    fresh: Annotated[bool, flag("--fresh", "Forget earlier runs of the demo.")] = False,
    has_digest: Annotated[
        bool, flag("--digest", "Post the numbers of the last seven days.")
    ] = False,
) -> None:
    """Show it all on this machine: no Slack account, Redis or API key.

    An embedded Valkey, a sandbox Slack with a web page, the bot, the gateway and a
    sample support agent start, and a link is printed. Waiting calls are still there
    when you start it again in the same folder.

    Examples:
      keyturn demo                       a page with a card that waits for you
      keyturn demo --digest              the page, with the week's numbers in it
      keyturn demo --script edit --json  the same without a browser
      keyturn demo --script escalate     a refund that takes two people
      keyturn demo --script batch        56 refunds of one turn, decided as one
      keyturn demo --script queue        20 threads, reviewed in one modal
      keyturn demo --script shared       20 threads on one card, one click
      keyturn demo --script digest       the numbers of a week, in a channel
      keyturn demo --script question     the agent asks before it acts
      keyturn demo --script inquiry      a reviewer asks the requester first
      keyturn demo --script direct       a decision in a direct message
      keyturn demo --script similar      one form allows more of the same calls
      keyturn demo --script hook         a coding agent asks by its hooks
      keyturn demo --script stock        an agent with LangChain's middleware
      keyturn demo --script mcp          an MCP client; its server needs a receipt
      keyturn demo --script outage       the model fails after the approval
      keyturn demo --script tamper       a forged approval is detected
    """
    command = command_context(ctx)
    config = _settings(command)
    if script is None:
        shown = _show(
            command, config, port, mode, is_fresh=fresh, has_digest=has_digest
        )
        serve(shown)
        return
    if script not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        raise SettingsError(f"There is no script {script!r}; choose one of {known}.")
    played = _play(command, config, script, mode, as_json=as_json)
    raise typer.Exit(asyncio.run(played))


def _settings(command: CommandContext) -> Path:
    """Return the settings with the sample agent: given, or built-in.

    Raises:
        SettingsError: when the given settings lack the sample agent, which the scripts
            require.
    """
    found = command.config or sample_settings()
    if SAMPLE in Settings.load(found, command.env).agents:
        return found
    raise SettingsError(
        f"{str(found)!r} has no agent {SAMPLE!r}, which the demo needs. Run the demo "
        "without --config; 'keyturn run --sandbox' shows your agents."
    )


async def _show(
    command: CommandContext,
    config: Path,
    port: int,
    mode: SlackMode,
    *,
    is_fresh: bool,
    has_digest: bool,
) -> None:
    folder = FOLDER
    if is_fresh and folder.exists():
        # Renamed, not deleted: an option must not destroy a user's input. Refused while
        # the demo runs: its store would continue under another name.
        with only_user(folder / demo_stack.KEPT):
            folder.rename(folder.with_name(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"))
    # In this process's environment, because the tools of the sample agent read it
    # there. An existing value wins.
    os.environ.setdefault(LEDGER, str(folder / "effects.jsonl"))
    typer.echo("Starting a Valkey, a sandbox Slack, the bot and the agent ...")
    env = command.env
    async with (
        demo_stack.open_demo_stack(
            config, folder, port=port, mode=mode, env=env
        ) as demo,
        mcp_on_page(demo, folder),
    ):
        # Asked once: after a restart the earlier card still waits, and a second one
        # would concern the same order.
        person = demo.sandbox.person(demo_stack.REQUESTER)
        if not await person.messages(demo_stack.CHANNEL):
            await person.say(demo_stack.CHANNEL, demo_stack.FIRST_REQUEST)
        if has_digest:
            await announce_digest(demo, Settings.load(config, env).tenant)
        url = f"{demo.sandbox.url}/?user={demo_stack.REVIEWER}"
        typer.echo(f"\n  {typer.style(url, bold=True)}\n")
        typer.echo("You are Ana, a reviewer. A card waits in #agent-approvals:")
        typer.echo("press Edit, change the amount to 449.50, and submit.")
        typer.echo("A refund of order 78420 takes two people, one of them senior:")
        typer.echo(
            "approve it as Ana, then switch to Chloé, who got it as a direct message."
        )
        typer.echo("Ctrl+C stops everything; open cards will still be there.")
        await until_stopped(demo.stack.keyturn.store)
    typer.echo("\nStopped. Run `make demo` or `keyturn demo` again to continue.")


async def _play(
    command: CommandContext, config: Path, name: str, mode: SlackMode, *, as_json: bool
) -> int:
    def say(event: str, **fields: object) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        row = {"event": event, "at": at, **fields}
        shown = json.dumps(row, ensure_ascii=False)
        typer.echo(shown if as_json else _readable(event, fields))

    with tempfile.TemporaryDirectory(prefix="keyturn-") as temporary:
        folder = Path(temporary)
        ledger = folder / "effects.jsonl"
        # Overwritten, unlike for the page: a script counts the effects of one run.
        os.environ[LEDGER] = str(ledger)
        outage = folder / "model-is-away"
        os.environ[OUTAGE] = str(outage)
        env = {"KEYTURN_API_LISTEN": "127.0.0.1:0", **command.env}
        policy = policy_for(config, name, folder)
        if policy is not None:
            env["KEYTURN_POLICY"] = str(policy)
        say("script.started", script=name)
        try:
            async with demo_stack.open_demo_stack(
                config, folder, mode=mode, env=env, is_kept=False
            ) as demo:
                await SCRIPTS[name](DemoContext(demo, say, ledger, outage))
        # A script that times out fails like one that finds a fault: with one line.
        except (KeyturnError, TimeoutError) as error:
            say("script.ended", script=name, ok=False, why=str(error))
            return 1
        say("script.ended", script=name, ok=True)
        return 0


def _readable(event: str, fields: dict[str, object]) -> str:
    rest = "  ".join(f"{name}={value}" for name, value in fields.items())
    return f"{event:<20} {rest}"
