"""Put people before the tools of MCP servers, for any MCP client.

An MCP client (Claude Code, Claude Desktop, Cursor, VS Code, an SDK) starts this command
instead of the server. Every tool call passes the policy; a call that needs people waits
for them in Slack, and runs once with exactly the approved arguments.

The gateway's URL and an API key are in KEYTURN_GATEWAY and KEYTURN_API_KEY
('keyturn api-keys create NAME --agent mcp'). In the policy, a tool is named
UPSTREAM__TOOL, such as billing__refund. docs/mcp.md has the settings of each client.

For Claude Desktop and Cursor ("mcpServers") and VS Code ("servers"):
  "billing": {
    "type": "stdio",
    "command": "keyturn",
    "args": ["mcp", "--upstream", "billing=npx -y @acme/billing-mcp"],
    "env": {"KEYTURN_GATEWAY": "https://…", "KEYTURN_API_KEY": "tk_…"}
  }

Examples:
  keyturn mcp --upstream billing='npx -y @acme/billing-mcp'      on stdio
  keyturn mcp --upstream crm=https://… --listen 127.0.0.1:8790   at a URL
  claude mcp add billing -- keyturn mcp --upstream billing='npx -y …'
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer
from pydantic import JsonValue

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import AsJson, option
from keyturn.cli.stop_signals import serve
from keyturn.connect.gate import HttpGate
from keyturn.connect.mcp import serving
from keyturn.connect.mcp.passing import KINDS
from keyturn.connect.mcp.server import GateOptions, GateServer
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.client.http_gateway import KEY_VARIABLE, address_of, agent_name
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.logs import LogSettings, write_logs
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service_settings import Address, PeopleSettings, parse_address
from keyturn.gateway.setting_forms import is_safe_url, parse_duration

T = TypeVar("T")

group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9]){0,30}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
_CLIENT = re.compile(r"(?:(?P<client>[^=]{1,80})=)?(?P<time>[^=]+)")

Upstreams = Annotated[
    list[str] | None,
    option(
        "NAME=COMMAND|URL",
        "A server: its name, and its command line or URL. Repeatable.",
        "--upstream",
    ),
]
Headers = Annotated[
    list[str] | None,
    option(
        "NAME=HEADER:VALUE",
        "A header for an upstream at a URL; $VARIABLE reads the environment.",
        "--header",
    ),
]
Agent = Annotated[
    str, typer.Option(help="The agent's name in policy, cards and API keys.")
]


@group.callback()
def mcp(  # noqa: PLR0913 - one option for each keyword
    ctx: typer.Context,
    *,
    upstream: Upstreams = None,
    header: Headers = None,
    agent: Agent = "mcp",
    requester: Annotated[
        str,
        option("U0…", "Slack id of the client's user, who cannot approve its calls."),
    ] = "",
    listen: Annotated[
        str,
        option(
            "HOST:PORT",
            "Serve streamable HTTP there, at /mcp; default: stdin and stdout.",
        ),
    ] = "",
    url: Annotated[
        str, option("URL", "The https:// address of the proxy before --listen.")
    ] = "",
    hold: Annotated[
        list[str] | None,
        option(
            "[CLIENT=]TIME",
            "Longest wait of a request for people, such as 45s or cursor=2m.",
        ),
    ] = None,
    passed: Annotated[
        str,
        option(
            "KIND,…",
            "Also pass on resources, prompts or instructions of the servers. "
            "People do not approve their texts.",
            "--pass",
        ),
    ] = "",
) -> None:
    """Serve MCP clients."""
    if ctx.invoked_subcommand is not None:
        return
    command = command_context(ctx)
    options = _options(
        command,
        upstream,
        header,
        agent,
        requester=_person(requester),
        passed=_kinds(passed),
        holds=_holds(hold or []),
    )
    # Standard output is the protocol: everything else is written to standard error.
    write_logs(LogSettings(), shows_errors=command.debug)
    gate = HttpGate(*address_of(None, None, command.env))
    if not listen:
        serve(_asked(options, gate, lambda server, _: serving.serve_stdio(server)))
        return
    people = command.settings().api.people
    serve(_serve_http(options, gate, people, _address(listen), url))


@group.command()
def check(
    ctx: typer.Context,
    *,
    upstream: Upstreams = None,
    header: Headers = None,
    agent: Agent = "mcp",
    json: AsJson = False,
) -> None:
    """List the tools of the servers, their tiers, and the state of their definitions.

    The tiers are those of the policy. The exit code is 1 if a definition is not
    approved. This command asks no people.

    Examples:
      keyturn mcp check --upstream billing='npx -y @acme/billing-mcp'
    """
    rows = _with_gate(ctx, upstream, header, agent, _listed)
    if json:
        console.as_json(rows)
    for row in rows if not json else ():
        say = console.good if row["definition"] == "approved" else console.bad
        say(f"{row['tool']}: tier {row['tier']}, definition {row['definition']}")
    if any(row["definition"] != "approved" for row in rows):
        if not json:
            console.note(
                "Ask people to approve definitions: keyturn mcp trust SERVER …"
            )
        raise typer.Exit(1)


@group.command()
def trust(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(help="The name of an upstream.")],
    tool: Annotated[str, typer.Argument(help="Only this tool.")] = "",
    *,
    upstream: Upstreams = None,
    header: Headers = None,
    agent: Agent = "mcp",
) -> None:
    """Ask people to approve the definitions of a server's tools, and wait for them.

    The card in Slack also contains definitions that people refused before. This command
    itself cannot approve anything.

    Examples:
      keyturn mcp trust billing --upstream billing='npx -y @acme/billing-mcp'
      keyturn mcp trust billing refund --upstream billing='…'   one tool
    """

    async def asked(gate: GateServer, _: HttpGate) -> str:
        if server not in gate.upstreams:
            raise SettingsError(f"No --upstream is named {server!r}.")
        console.note(f"People are asked about the tools of {server} in Slack.")
        return await gate.definitions.ask(server, tool, again=True)

    if problem := _with_gate(ctx, upstream, header, agent, asked):
        raise SettingsError(problem)
    console.good(f"The definitions of {server} are approved.")


async def _listed(server: GateServer, gate: HttpGate) -> list[dict[str, JsonValue]]:
    note = await gate.note(server.agent)
    return [
        {
            "tool": tool,
            "tier": "depends on the arguments"
            if tool in note.varying
            else note.tiers.get(tool, note.other_tier),
            "definition": state,
        }
        for name in server.upstreams
        for each, state in (await server.definitions.states(name)).items()
        for tool in [f"{name}__{each}"]
    ]


def _with_gate(
    ctx: typer.Context,
    upstreams: list[str] | None,
    headers: list[str] | None,
    agent: str,
    ask: Callable[[GateServer, HttpGate], Awaitable[T]],
) -> T:
    """Start a gate that serves no client, and ask it."""
    command = command_context(ctx)
    options = _options(command, upstreams, headers, agent)
    gate = HttpGate(*address_of(None, None, command.env))
    return asyncio.run(_asked(options, gate, ask))


def _options(
    command: CommandContext,
    upstreams: list[str] | None,
    headers: list[str] | None,
    agent: str,
    **more: Any,  # noqa: ANN401 - other options of the gate
) -> GateOptions:
    return GateOptions(
        upstreams=upstream_specs(command, upstreams, headers),
        agent=agent_name(agent),
        api_key=command.env.get(KEY_VARIABLE, ""),
        env=command.env,
        **more,
    )


async def _asked(
    options: GateOptions,
    gate: HttpGate,
    ask: Callable[[GateServer, HttpGate], Awaitable[T]],
) -> T:
    async with aclosing(gate), serving.running(options, gate) as server:
        return await ask(server, gate)


async def _serve_http(
    options: GateOptions,
    gate: HttpGate,
    people: PeopleSettings | None,
    address: Address,
    url: str,
) -> None:
    tokens = serving.Tokens(people, gate) if people else None
    caller = serving.signed_in if tokens else None
    async with aclosing(gate), serving.running(options, gate, caller=caller) as server:
        await serving.serve_http(
            serving.http_app(server, address, url=url, tokens=tokens), address
        )


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise SettingsError(f"--listen {error}") from error


def upstream_specs(
    command: CommandContext, upstreams: list[str] | None, headers: list[str] | None
) -> list[UpstreamSpec]:
    """Return the servers of a command line.

    Raises:
        SettingsError: names the mistake.
    """
    specs = [parse_upstream(one) for one in upstreams or []]
    if not specs:
        raise SettingsError(
            "Name the server behind the gate: --upstream "
            "billing='npx -y @acme/billing-mcp', or --upstream crm=https://…/mcp."
        )
    found = {spec.name: dict[str, str]() for spec in specs if spec.url}
    for one in headers or []:
        name, header, value = parse_header(one, command.env)
        if name not in found:
            raise SettingsError(
                f"The --header is for {name!r}, but no --upstream of that name is at a "
                "URL."
            )
        found[name][header] = value
    return [replace(one, headers=found.get(one.name, {})) for one in specs]


def parse_upstream(text: str) -> UpstreamSpec:
    """Parse ``name=command …`` or ``name=https://…``.

    Raises:
        SettingsError: names the mistake.
    """
    name, _, target = (part.strip() for part in text.partition("="))
    if not _NAME.fullmatch(name) or not target:
        raise SettingsError(
            f"The upstream {text!r} is not NAME=COMMAND or NAME=URL, such as "
            "billing='npx -y @acme/billing-mcp'. A name has lower-case letters, "
            "digits and single hyphens, 31 at most."
        )
    if re.match(r"(?i)https?://", target):
        if not is_safe_url(target):
            raise SettingsError(
                f"The upstream {name!r} is at {target!r}: use https://, or http:// for "
                "this machine. Over plain http its token could be read on the way."
            )
        return UpstreamSpec(name, url=target)
    try:
        command = tuple(shlex.split(target))
    except ValueError as error:
        raise SettingsError(
            f"The command of the upstream {name!r} cannot be read: {error}."
        ) from error
    return UpstreamSpec(name, command=command)


def parse_header(text: str, env: Mapping[str, str]) -> tuple[str, str, str]:
    """Parse ``upstream=Header: value``; ``$NAME`` as the value reads the environment.

    Raises:
        SettingsError: names the mistake, without the value.
    """
    upstream, _, rest = text.partition("=")
    name, colon, value = (part.strip() for part in rest.partition(":"))
    if not colon or not _HEADER.fullmatch(name):
        raise SettingsError(
            "A --header is UPSTREAM=NAME:VALUE, such as 'crm=Authorization:$CRM_TOKEN'."
        )
    scheme, _, variable = value.rpartition("$")
    if variable != value:
        if variable not in env:
            raise SettingsError(
                f"The header {name!r} of {upstream!r} needs the environment variable "
                f"{variable!r}, which is not set."
            )
        value = scheme + env[variable]
    return upstream, name, value


def _person(text: str) -> Person | None:
    if not text:
        return None
    person = Person(team="", user=text)
    if not person.has_slack_id:
        raise SettingsError(
            f"--requester {text!r} is no Slack user id, such as U0123ABCD. In Slack, "
            "a profile's menu has 'Copy member ID'."
        )
    return person


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(one.strip() for one in text.split(",") if one.strip())
    if unknown := sorted(kinds - {*KINDS}):
        raise SettingsError(
            f"--pass cannot pass on {unknown[0]!r}; it takes {', '.join(KINDS)}."
        )
    return kinds


def _holds(texts: list[str]) -> dict[str, float]:
    found = dict[str, float]()
    for text in texts:
        parts = _CLIENT.fullmatch(text)
        try:
            seconds = parse_duration(parts["time"] if parts else text).total_seconds()
        except ValueError as error:
            raise SettingsError(f"--hold {text!r}: {error}") from error
        found[parts["client"] or "" if parts else ""] = seconds
    return found
