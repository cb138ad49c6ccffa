"""Several workspaces that install one app, their gateways' settings, and one bot."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp

from keyturn.bot.ids import Action
from keyturn.cli.workspaces import serving_workspaces
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.config import Settings
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.samples import sample_workspace
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.workspace import Workspace
from tests.bot.bot_stack import is_card_of
from tests.conftest import eventually
from tests.ports import free_port
from tests.store_secrets import ENV
from tests.streams import audit_entries

STATE = "slack-app-oauth-state"


def workspace(letter: str, *, enterprise: str = "") -> Workspace:
    """Return a workspace whose ids contain a letter, so that no other one has them."""
    text = sample_workspace()
    team = f"T0{letter}"

    def renamed(id_: str) -> str:
        kept = id_ == text.app.bot_user
        return id_ if kept else f"{id_[0]}{letter}{id_[2:]}"

    users = [
        replace(user, id=renamed(user.id), team_id=team)
        for user in text.users.values()
        if not user.is_stranger
    ]
    known = {user.id for user in users}
    channels = [
        replace(
            channel,
            id=renamed(channel.id),
            members=frozenset(map(renamed, channel.members)) & known,
        )
        for channel in text.channels.values()
        if not channel.is_im
    ]
    groups = [
        replace(group, id=renamed(group.id), users=tuple(map(renamed, group.users)))
        for group in text.groups.values()
    ]
    return Workspace(
        team_id=team,
        team_name=f"Workspace {letter}",
        users={user.id: user for user in users},
        channels={channel.id: channel for channel in channels},
        groups={group.id: group for group in groups},
        enterprise_id=enterprise,
    )


@dataclass
class Side:
    """One workspace and its tenant, as its people and its agent see them."""

    letter: str
    sandbox: Sandbox
    store: Store
    file: Path
    agents: AgentService = field(init=False)

    def __post_init__(self) -> None:
        policy = load_policy(json.dumps(self.policy), "policy.yml")
        self.agents = AgentService(self.store, lambda: policy, tenant=self.tenant)

    @property
    def tenant(self) -> str:
        return f"tenant-{self.letter.lower()}"

    @property
    def team(self) -> str:
        return self.sandbox.workspace.team_id

    @property
    def channel(self) -> str:
        return f"C{self.letter}APPROVALS"

    @property
    def policy(self) -> Mapping[str, object]:
        group = f"S{self.letter}SUPPORT"
        return {
            "version": 1,
            "defaults": {"channel": self.channel, "needs": "support"},
            "roles": {"support": {"usergroups": [group]}},
            "tools": {"process_refund": {"tier": "approve"}},
        }

    @property
    def ana(self) -> Actor:
        return self.sandbox.person(f"U{self.letter}ANA")

    async def ask(self, thread: str = "t1") -> Verdict:
        """Submit one call of an agent of this tenant."""
        keys = self.store.keys_of_tenant(self.tenant)
        dan = Person(team=self.team, user=f"U{self.letter}DAN", name="dan")
        facts = ThreadFacts(requester=dan)
        await self.store.threads.change(
            keys, "support", thread, lambda _: facts, why="aside"
        )
        call = ProposedCall(tool="process_refund", args={"n": 1}, tool_call_id="c1")
        ref = TurnRef(agent="support", thread=thread, message_id=f"m-{thread}")
        [verdict] = await self.agents.submit(Turn(ref=ref, calls=(call,)))
        return verdict

    async def card(self, verdict: Verdict) -> JsonObject:
        """Wait for the card of a call."""
        id_ = approval_of(verdict.item_id)[0]
        return await self.ana.message_with(self.channel, lambda m: is_card_of(m, id_))

    async def item(self, verdict: Verdict) -> Item:
        id_, index = approval_of(verdict.item_id)
        loaded = await self.store.approvals.load(id_)
        assert loaded
        return loaded.approval.items[index]

    async def approve(self, verdict: Verdict) -> None:
        card = await self.card(verdict)
        await self.ana.click(self.channel, str(card["ts"]), Action.APPROVE)

    async def audit(self) -> list[Event]:
        keys = self.store.keys_of_tenant(self.tenant)
        return await audit_entries(self.store.conn, keys)


class Browser:
    """A browser of somebody who installs the app; it keeps one cookie."""

    def __init__(self, url: str, slack: Sandbox) -> None:
        self.url, self.slack = url, slack
        self.cookie = ""

    async def begin(self) -> str:
        """Open the installation page, and return Slack's address on it."""
        status, headers, text = await self.get(f"{self.url}/slack/install")
        assert status == 200, text
        found = re.search(rf"{STATE}=([^;]+);", headers["Set-Cookie"])
        assert found
        assert "HttpOnly" in headers["Set-Cookie"]
        assert "Secure" in headers["Set-Cookie"]
        self.cookie = f"{STATE}={found[1]}"
        link = re.search(r'<a href="([^"]+)"', text)
        assert link
        return html.unescape(link[1])

    async def consent(self, address: str, team: str, *, declines: bool = False) -> str:
        """Answer Slack's page, and return the address it leads back to."""
        more = f"&team={team}" + ("&sandbox_declines=1" if declines else "")
        status, headers, text = await self.get(address.replace("&team=", "") + more)
        assert status == 302, text
        return headers["Location"]

    async def install(self, team: str) -> tuple[int, str]:
        """Install the app; return status and text of the last page."""
        back = await self.consent(await self.begin(), team)
        status, _, text = await self.get(back)
        return status, text

    async def get(self, address: str) -> tuple[int, Mapping[str, str], str]:
        headers = {"Cookie": self.cookie} if self.cookie else {}
        async with (
            aiohttp.ClientSession() as session,
            session.get(address, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status, answer.headers, await answer.text()


def state_in(address: str) -> str:
    """Return the state in an address."""
    return parse_qs(urlsplit(address).query)["state"][0]


@dataclass
class World:
    """The bot's settings, its store, and all workspaces."""

    folder: Path
    store: Store
    sides: dict[str, Side]

    def __post_init__(self) -> None:
        self.port = free_port()

    @property
    def slack(self) -> Sandbox:
        return next(iter(self.sides.values())).sandbox

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def browser(self) -> Browser:
        return Browser(self.url, self.slack)

    def env(self, **changes: str) -> dict[str, str]:
        secrets = {
            "SLACK_CLIENT_SECRET": self.slack.slack.installer.client_secret,
            "SLACK_SIGNING_SECRET": self.slack.signing_secret,
            "KEYTURN_REDIS_URL": self.store.conn.url,
        }
        return {**ENV, **secrets, **changes}

    def settings(self, port: int | None = None, **changes: object) -> Settings:
        slack = {
            "mode": "http",
            "port": port or self.port,
            "url": self.url,
            "client_id": self.slack.slack.installer.client_id,
            "api_url": self.slack.api_url,
            "workspaces": [str(side.file) for side in self.sides.values()],
            **changes,
        }
        file = self.folder / "bot.yml"
        file.write_text(json.dumps({"slack": slack}), "utf-8")
        return Settings.load(file, self.env())

    @asynccontextmanager
    async def running(self, port: int | None = None) -> AsyncGenerator[None]:
        """Run one bot process; all workspaces deliver to the first one."""
        settings = self.settings(port)
        async with serving_workspaces(settings, self.env(), insecure_dev=True):
            for side in self.sides.values():
                side.sandbox.deliver_http(f"{self.url}/slack/events")
            yield

    async def readiness(self) -> tuple[int, dict[str, list[str]]]:
        status, _, text = await self.browser.get(f"{self.url}/readyz")
        return status, json.loads(text)["workspaces"]

    async def serves(self, *letters: str) -> None:
        """Wait until exactly these workspaces have no problem."""
        wanted = {self.sides[letter].team for letter in letters}

        async def is_so() -> bool:
            problems = (await self.readiness())[1]
            return {s.team for s in self.sides.values()} - {*problems} == wanted

        await eventually(is_so)


def refreshes(world: World) -> int:
    """Return how often a token was renewed, successfully or not."""
    calls = [c for c in world.slack.calls if c.method == "oauth.v2.access"]
    return sum(c.arguments.get("grant_type") == "refresh_token" for c in calls)


@asynccontextmanager
async def world(
    folder: Path, store: Store, *letters: str, enterprise: str = ""
) -> AsyncGenerator[World]:
    """Open the Slack side of some workspaces, and write their settings."""
    sides: dict[str, Side] = {}
    first: Sandbox | None = None
    async with AsyncExitStack() as opened:
        for letter in letters:
            org = enterprise if first else ""
            sandbox = await opened.enter_async_context(
                Sandbox(workspace(letter, enterprise=org), joins=first)
            )
            first = first or sandbox
            file = folder / f"{letter.lower()}.yml"
            side = sides[letter] = Side(letter, sandbox, store, file)
            settings = {
                "tenant": side.tenant,
                "data_dir": str(folder / f"data-{letter}"),
                "slack": {"team": side.team, "organization": org},
                "policy": side.policy,
            }
            file.write_text(json.dumps(settings), "utf-8")
        yield World(folder, store, sides)
