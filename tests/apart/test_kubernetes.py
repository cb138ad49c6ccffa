"""The manifests of Kubernetes fit its schemas, and what they start works.

There is no cluster here: each container's command is a process whose mounts are folders
of the test.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn import Keyturn
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import calling, scripted
from keyturn.bot.ids import Action
from keyturn.cli.demo_stack import environment, seed
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.policy_file import PolicyFile
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.apart.house import LONG_S, Member
from tests.conftest import eventually
from tests.docs.test_readme import ROOT
from tests.ports import free_port
from tests.store_secrets import SECRETS

FOLDER = ROOT / "examples" / "deploy" / "kubernetes"
FILES = ("audit.yaml", "gateway.yaml", "bot.yaml")
CHANNEL = "#agent-approvals"


def documents() -> list[dict[str, Any]]:
    """Return all resources."""
    return [
        one
        for name in FILES
        for one in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    ]


def pod(role: str) -> dict[str, Any]:
    """Return the pod template of a deployment."""
    found: list[dict[str, Any]] = [
        one["spec"]["template"]["spec"]
        for one in documents()
        if one["metadata"]["name"] == f"keyturn-{role}" and one["kind"] == "Deployment"
    ]
    return found[0]


def test_the_manifests_fit_the_schemas_of_the_newest_kubernetes() -> None:
    for one in documents():
        kubernetes_validate.validate(
            one, kubernetes_validate.latest_version(), strict=True
        )


def test_the_kustomization_lists_every_file() -> None:
    text = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)

    assert found["resources"] == [*FILES]
    assert found["configMapGenerator"] == [
        {"name": "keyturn", "files": ["keyturn.yml"]}
    ]


@pytest.mark.parametrize("role", ["gateway", "bot"])
def test_no_container_is_root_or_writes_outside_of_its_volumes(role: str) -> None:
    found = pod(role)

    assert found["securityContext"]["runAsNonRoot"]
    for one in [*found["initContainers"], *found["containers"]]:
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("role", ["bot", "gateway"])
def test_no_service_of_the_namespace_sets_a_variable_of_keyturn(role: str) -> None:
    assert pod(role)["enableServiceLinks"] is False


def test_a_gateway_has_no_token_of_slack_and_no_key_of_the_bots() -> None:
    mounted = [one["secret"] for one in pod("gateway")["volumes"] if "secret" in one]
    shared, *keys = mounted

    assert [one["key"] for one in shared["items"]] == [
        "secret", "redis-url", "checkpoints",
    ]  # fmt: skip
    assert {one["secretName"] for one in keys} == {
        "keyturn-gateway-keys", "keyturn-audit-keys",
    }  # fmt: skip


@dataclass
class Cluster:
    """Folders for the mounts of pods, and their processes."""

    folder: Path
    sandbox: Sandbox
    env: dict[str, str]
    bot_key: str
    pods: dict[str, Member] = field(default_factory=dict[str, Member])
    urls: dict[str, str] = field(default_factory=dict[str, str])

    async def start(self, role: str, number: int) -> None:
        """Run the init container of a pod, then start its container."""
        name, spec = f"{role}-{number}", pod(role)
        port = free_port()
        places = self._places(name, port)
        for one in spec["initContainers"]:
            words = _moved(one["command"], places)
            await asyncio.to_thread(subprocess.run, words, check=True)
        [container] = spec["containers"]
        given = {one["name"]: one["value"] for one in container["env"]}
        env = self.env | dict(zip(given, _moved(given.values(), places), strict=True))
        _, *words = _moved(container["command"], places)
        member = Member(("keyturn", *words), env, self.folder / f"{name}.log")
        self.pods[name], self.urls[name] = member, f"http://127.0.0.1:{port}"
        await member.start()

    async def is_ready(self, name: str) -> bool:
        """Return whether the readiness probe of a pod succeeds."""
        [container] = pod(name.partition("-")[0])["containers"]
        path = container["readinessProbe"]["httpGet"]["path"]
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                reply = await client.get(f"{self.urls[name]}{path}")
        except httpx.TransportError:
            return False
        return reply.status_code == HTTPStatus.OK

    async def all_ready(self, *names: str) -> None:
        """Wait until pods are ready."""
        for name in names:
            await eventually(partial(self.is_ready, name), within_s=LONG_S)

    def run(self, role: str, *words: str) -> str:
        """Run a command in the first pod of a role; return its output."""
        env = dict(self.pods[f"{role}-1"].env)
        config = self.folder / f"{role}-1" / "etc" / "keyturn.yml"
        command = [sys.executable, "-m", "keyturn", "--config", str(config), *words]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=True
        ).stdout

    def _places(self, name: str, port: int) -> dict[str, str]:
        """Return the folder of each mount of a pod, and the port, by their names."""
        home = self.folder / name
        for one in ("etc", "data", "mounted"):
            (home / one).mkdir(parents=True)
        for one in pod(name.partition("-")[0])["volumes"]:
            role, is_keys, _ = one["name"].partition("-keys")
            if is_keys:
                made = self.folder / "made" / "keys" / role
                (home / "mounted" / role).symlink_to(made)
        places = {
            "/etc/keyturn": str(home / "etc"),
            "/var/lib/keyturn-audit": str(self.folder / "audit"),
            "/var/lib/keyturn": str(home / "data"),
            "/run/secrets/keyturn": str(self.folder / "secrets"),
            "/run/keys": str(home / "mounted"),
            "0.0.0.0": "127.0.0.1",  # noqa: S104 - read from the manifests
            "8780" if name.startswith("gateway") else "3000": str(port),
        }
        [text] = _moved([(FOLDER / "keyturn.yml").read_text("utf-8")], places)
        if name.startswith("gateway"):
            text = text.replace("port: 3000", "port: 0")
        text = text.replace("keys: {bot: []}", f"keys: {{bot: [{self.bot_key!r}]}}")
        (home / "etc" / "keyturn.yml").write_text(text, encoding="utf-8")
        return places


def _moved(texts: Iterable[str], places: dict[str, str]) -> list[str]:
    found = list(texts)
    for place, here in places.items():
        found = [one.replace(place, here) for one in found]
    return found


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[Cluster]:
    """Start two gateways and two bots, with keys and secrets as the comment says."""
    machine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KEYTURN_", "SLACK_"))
    }
    comment = (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")
    printed = dict[str, str]()
    for role in ("bot", "gateway", "audit"):
        assert f"keyturn keys create {role}" in comment
        made = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "keyturn", "keys", "create", role],
            env=machine | {"KEYTURN_DATA_DIR": str(folder / "made")},
            cwd=folder, check=True, capture_output=True, text=True,
        )  # fmt: skip
        printed[role] = made.stdout
    [bot_key] = re.findall(r"^keyturn/bot\S+", printed["bot"], re.MULTILINE)
    async with AsyncExitStack() as opened:
        engine = opened.enter_context(EmbeddedEngine(folder / "store"))
        sandbox = await opened.enter_async_context(Sandbox(port=0))
        slack = environment(sandbox, folder, SlackMode.SOCKET, machine)
        secrets = {
            "secret": SECRETS[0].hex(),
            "redis-url": engine.url,
            "checkpoints": str(folder / "checkpoints.sqlite"),
            "slack-bot-token": slack["SLACK_BOT_TOKEN"],
            "slack-app-token": slack["SLACK_APP_TOKEN"],
        }
        for one in ("secrets", "audit"):
            (folder / one).mkdir()
        for name, value in secrets.items():
            assert f"--from-file={name}" in comment
            (folder / "secrets" / name).write_text(f"{value}\n", encoding="utf-8")
        env = machine | {"KEYTURN_SLACK_API_URL": slack["KEYTURN_SLACK_API_URL"]}
        found = Cluster(folder, sandbox, env | {"NO_COLOR": "1"}, bot_key)
        settings = Settings.load(FOLDER / "keyturn.yml", {})
        seed(sandbox.workspace, PolicyFile(settings.policy)())
        try:
            for role in ("gateway", "bot"):
                for number in (1, 2):
                    await found.start(role, number)
            await found.all_ready(*found.pods)
            yield found
        finally:
            for member in found.pods.values():
                await member.kill()


SENT: list[float] = []


@guarded
@tool
def wire_money(to: str, amount: float) -> str:
    """Send money."""
    SENT.append(amount)
    return f"sent {amount} to {to}"


@pytest.mark.slow
async def test_a_killed_gateway_and_bot_are_replaced(tmp_path: Path) -> None:
    SENT.clear()
    async with cluster(tmp_path) as pods:
        key = pods.run("gateway", "api-keys", "create", "prod", "--agent", "billing")
        [secret] = [word for word in key.split() if word.startswith("tk_")]
        running = asyncio.create_task(_pay(pods.urls["gateway-1"], secret, tmp_path))
        ana = pods.sandbox.person("U0ANA")
        card = await ana.message_with(CHANNEL, _can_be_approved, LONG_S)

        await pods.pods["bot-1"].kill()
        await pods.pods["gateway-2"].kill()
        await eventually(lambda: _clicked(ana, str(card["ts"])), within_s=LONG_S)

        assert await running == "sent 90.0 to ada"
        assert SENT == [90.0]


async def _pay(url: str, key: str, folder: Path) -> str:
    """Run an agent elsewhere, with an API key, to its end; return its tool's result."""
    model = scripted([calling(("wire_money", {"to": "ada", "amount": 90.0}, "c1"))])
    saver = AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite"))
    async with saver as checkpointer, Keyturn.remote(url, api_key=key) as tk:
        graph = create_agent(
            model,
            [wire_money],
            middleware=[ApprovalMiddleware("billing")],
            checkpointer=checkpointer,
        )
        given = {"messages": [("user", "pay Ada")]}
        final = await tk.run(graph, given, thread_id="invoice-42", agent="billing")
    return str(final["messages"][-2].text)


async def _clicked(person: Person, card: str) -> bool:
    """Press Approve; False if Slack shows an error, as when a bot was just killed."""
    with suppress(UserActionFailed):
        await person.click(CHANNEL, card, Action.APPROVE)
        return True
    return False


def _can_be_approved(message: dict[str, Any]) -> bool:
    return Action.APPROVE in str(message["blocks"])
