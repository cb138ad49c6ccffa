"""The doctor's checks of Agent Servers: reached, permitted, and with all graphs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterable

from keyturn.cli.reviewer_checks import Check, State
from keyturn.connect.agent_server import AgentServer, Info
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.resume.threads import is_known, question_of
from keyturn.gateway.service_settings import ServerSettings

OLDEST = (0, 6)
"""Version of LangGraph from which each question has its own id."""

_IDENTITY = (
    "it asks for a key, so calls that people approve run with the rights of this key, "
    "not of the user who began the conversation; see docs/agent-server.md."
)

_UNKNOWN = (
    "the thread {thread} asks in a form that Keyturn does not know, so nobody is asked "
    "and nothing is sent; answer it on the page of the server."
)
_READ = 20


async def check_servers(settings: Settings) -> AsyncGenerator[Check]:
    """Yield the checks of each Agent Server in the settings."""
    async with outgoing(timeout_s=10.0) as session:
        for name, server in settings.servers.items():
            title = f"server {name}"
            try:
                host = AgentServer(name, server, session)
                found, waiting = await host.info(), await host.waiting()
                unknown = await _unknown(host, waiting)
            except KeyturnError as error:
                yield Check(title, State.BAD, str(error))
                continue
            problem = _problem(found, server)
            state = State.BAD if problem else State.GOOD
            text = f"{_described(found, server)}; {len(waiting)} threads may wait"
            yield Check(title, state, problem or text)
            for thread in unknown:
                yield Check(title, State.SKIPPED, _UNKNOWN.format(thread=thread))
            if found.has_auth:
                yield Check(title, State.SKIPPED, _IDENTITY)


async def _unknown(host: AgentServer, waiting: Iterable[str]) -> list[str]:
    """Return the first waiting threads whose question people cannot be asked."""
    found = list[str]()
    for thread in itertools.islice(waiting, _READ):
        at = await host.read(thread)
        asked = at.questions if at else ()
        if not all(question_of(one) or is_known(one) for one in asked):
            found.append(thread)
    return found


def _problem(found: Info, server: ServerSettings) -> str:
    """Return what keeps Keyturn from working with a server; "" for nothing."""
    if found.langgraph and found.langgraph < OLDEST:
        shown, least = (".".join(map(str, one)) for one in (found.langgraph, OLDEST))
        return f"it runs LangGraph {shown}; Keyturn needs {least} or newer."
    missing = sorted(server.graphs.keys() - found.graphs)
    if missing:
        there = ", ".join(sorted(found.graphs)) or "none"
        return f"it has no graph {', '.join(missing)}; its graphs: {there}."
    return ""


def _described(found: Info, server: ServerSettings) -> str:
    agents = ", ".join(
        f"{graph} as {it.agent}" if graph != it.agent else graph
        for graph, it in server.graphs.items()
    )
    return f"version {found.version or 'unknown'} at {server.url}; graphs: {agents}"
