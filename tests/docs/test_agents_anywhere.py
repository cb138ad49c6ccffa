"""docs/agents-anywhere.md and the examples of remote agents work unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from configparser import ConfigParser
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import FastAPI

from examples.fastapi_remote import app as fastapi_remote
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.webhook_signatures import (
    DECIDED,
    Message,
    News,
    body_of,
    headers,
    shown,
    webhook_secret,
)
from tests.api.api_stack import ApiStack, serving
from tests.docs.reviewing import HEAD, approve_all, run
from tests.docs.test_embedding import OWN
from tests.docs.test_readme import ROOT, blocks
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS

PAGE = (ROOT / "docs" / "agents-anywhere.md").read_text(encoding="utf-8")
AGENT, PROGRAM = blocks("python", PAGE)
EXAMPLES = ROOT / "examples"
DEPLOY = EXAMPLES / "deploy"
POLICY = f"{HEAD}tools: {{look_up_order: {{tier: auto}}}}\n"


@pytest.fixture
async def stack(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ApiStack]:
    """Serve a gateway, and give this process its URL and a key."""
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    monkeypatch.chdir(tmp_path)
    async with serving(harness) as found:
        monkeypatch.setenv("KEYTURN_GATEWAY", found.url)
        monkeypatch.setenv("KEYTURN_API_KEY", found.key(["*"]))
        yield found


def people(stack: ApiStack) -> Keyturn:
    """Return the side of the people: a harness has all that they are asked for."""
    return cast("Keyturn", cast("object", stack.harness))


async def test_an_approval_runs_the_programs_thread(stack: ApiStack) -> None:
    said = io.StringIO()

    def page() -> None:
        with contextlib.redirect_stdout(said):
            run(AGENT + PROGRAM)

    running = asyncio.create_task(asyncio.to_thread(page))
    await approve_all(people(stack), RunRef(agent="billing", thread="invoice-42"))
    await running

    assert said.getvalue().endswith("sent 90.0 to ada\n")


async def test_a_graph_that_is_invoked_otherwise_is_resumed(stack: ApiStack) -> None:
    ask_on_my_own = run(OWN)["ask_on_my_own"]

    async with Keyturn.remote() as tk:
        running = asyncio.create_task(ask_on_my_own(tk, "refund order 78291"))
        await approve_all(people(stack), RunRef(agent="support", thread="order-1"))

        assert "899" in await running


@pytest.mark.parametrize(
    ("decision", "said", "code"),
    [
        (Approve(), r"sent 90 to ada under [0-9a-f]{8}$", 0),
        (Reject(reason="not today"), "not approved: not today", 1),
    ],
)
async def test_the_shell_script_asks_waits_claims_and_finishes(
    stack: ApiStack, decision: Any, said: str, code: int
) -> None:
    if not (shutil.which("curl") and shutil.which("jq")):
        pytest.skip("needs curl and jq")
    run_ref = RunRef(agent="billing", thread="invoice-42")

    async def script() -> tuple[int, str]:
        path = str(EXAMPLES / "other_languages" / "pay.sh")
        args = json.dumps({"to": "ada", "amount": 90})
        process = await asyncio.create_subprocess_exec(
            path, "invoice-42", args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    first = asyncio.create_task(script())
    await approve_all(people(stack), run_ref, decision)
    ended, shown = await first
    again = await script()

    assert (ended, bool(re.search(said, shown))) == (code, True), shown
    # Recognized by its names: it is neither requested nor run again.
    assert again == (ended, shown)


@pytest.fixture
def application(
    stack: ApiStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ApiStack:
    """Give the example application of FastAPI its database and its ledger."""
    monkeypatch.setattr(fastapi_remote, "DATABASE", str(tmp_path / "threads.sqlite"))
    monkeypatch.setenv("KEYTURN_DEMO_LEDGER", str(tmp_path / "effects.jsonl"))
    return stack


@contextlib.asynccontextmanager
async def worker() -> AsyncGenerator[httpx.AsyncClient]:
    """Run one worker of the application; yield its client."""
    app = FastAPI(lifespan=fastapi_remote.lifespan)
    app.include_router(fastapi_remote.app.router)
    transport = httpx.ASGITransport(app)
    async with (
        fastapi_remote.lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        yield client


async def test_two_workers_of_the_application_answer_for_one_thread(
    application: ApiStack, tmp_path: Path
) -> None:
    async with worker() as first, worker() as second:
        question = {"text": "refund order 78291"}
        await asyncio.gather(
            *(one.post("/orders/o1", json=question) for one in (first, second))
        )
        await approve_all(people(application), RunRef(agent="support", thread="o1"))
        said = None
        async with asyncio.timeout(30):
            while said is None:
                said = (await second.get("/orders/o1")).json()["said"]
        shown = (await first.get("/orders/o1")).json()

    assert "899" in said
    assert shown == {"waiting": [], "said": said}
    effects = (tmp_path / "effects.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(effects) == 1


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize(("is_ours", "status"), [(True, 204), (False, 401)])
async def test_the_application_takes_the_gateways_webhooks_and_no_others(
    monkeypatch: pytest.MonkeyPatch, *, is_ours: bool, status: int
) -> None:
    secret = webhook_secret(SECRETS[0], "default", "app", 1)
    monkeypatch.setenv("KEYTURN_WEBHOOK_SECRET", shown(secret))
    body = body_of(DECIDED, News(agent="support", thread="o9", approval="ap_1"), 5)
    now_s = int(time.time())  # noqa: TID251 - the application has no other clock
    signed = headers(Message("msg_1", now_s, body), [secret if is_ours else b"x" * 32])

    async with worker() as client:
        answer = await client.post("/keyturn", content=body, headers=signed)

    assert answer.status_code == status


COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
UNITS = {
    path.name: path.read_text(encoding="utf-8") for path in DEPLOY.glob("*.service")
}


def test_the_compose_file_starts_what_the_docs_name() -> None:
    assert {*SERVICES} == {"valkey", "gateway", "bot", "proxy"}
    store = " ".join(SERVICES["valkey"]["command"])
    for promised in ("appendonly yes", "appendfsync always", "noeviction"):
        assert promised in store
    assert {name for name, one in SERVICES.items() if "ports" in one} == {"proxy"}
    assert COMPOSE["networks"]["inside"]["internal"] is True
    for one in SERVICES.values():
        assert {*one["networks"]} <= {*COMPOSE["networks"]}


def test_gateway_and_bot_may_end_their_work_and_share_the_ledger_and_no_keys() -> None:
    place = "/var/lib/keyturn-shared/checkpoints.sqlite"
    folders: list[set[str]] = []
    for name in ("gateway", "bot"):
        service, unit = SERVICES[name], UNITS[f"keyturn-{name}.service"]
        # Compose kills after ten seconds by default.
        assert service["stop_grace_period"] == "45s"
        assert "TimeoutStopSec=45\n" in unit
        assert service["environment"]["KEYTURN_CHECKPOINTS"] == place
        assert f"Environment=KEYTURN_CHECKPOINTS={place}\n" in unit
        [found] = re.findall(r"^StateDirectory=(.*)$", unit, flags=re.MULTILINE)
        folders.append({*found.split()})
    assert folders[0] & folders[1] == {"keyturn-shared"}
    both = {*SERVICES["gateway"]["volumes"]} & {*SERVICES["bot"]["volumes"]}
    assert [one for one in both if "/var/lib" in one] == [
        "shared:/var/lib/keyturn-shared"
    ]


def test_the_compose_file_builds_its_image_from_the_dockerfile(tmp_path: Path) -> None:
    build = SERVICES["gateway"]["build"]
    top = (DEPLOY / build["context"]).resolve()
    lines = (top / build["dockerfile"]).read_text(encoding="utf-8").splitlines()
    steps = [line.split() for line in lines if line and line[0].isupper()]

    # The wheel can be built from exactly the copied files.
    copied = [one[1:] for one in steps if one[0] == "COPY" and one[1][0] != "-"]
    for *sources, _ in copied:
        for source in sources:
            target = tmp_path / source
            target.parent.mkdir(exist_ok=True)
            if (top / source).is_dir():
                shutil.copytree(top / source, target, symlinks=True)
            else:
                shutil.copy(top / source, target)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    # Nothing that is copied is kept from the builder.
    ignored = (top / ".dockerignore").read_text(encoding="utf-8").split()
    assert not {source for *sources, _ in copied for source in sources} & {*ignored}
    assert all(not one[-1].startswith(".env") for one in copied)
    # The process is no root, and the packages are those of the lock.
    last = max(n for n, one in enumerate(steps) if one[0] == "FROM")
    assert ["USER", "keyturn"] in steps[last:]
    assert "--require-hashes" in " ".join(lines)


@pytest.mark.parametrize("status", [200, 503])
async def test_the_container_is_healthy_while_its_process_answers(status: int) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)
    _, *given = json.loads(words)

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    async with TestServer(app, host="127.0.0.1") as server:
        port = str(server.make_url("/").port)
        env = os.environ | {"HEALTH_PORT": port}
        # The check reaches its own process also when a proxy is set.
        env |= {"http_proxy": "http://127.0.0.1:9"}
        checked = await asyncio.create_subprocess_exec(sys.executable, *given, env=env)
        code = await checked.wait()

    assert (code == 0) == (status == 200)


def test_the_settings_beside_it_are_settings() -> None:
    env = {"KEYTURN_SECRET": "5e" * 32}
    settings = Settings.load(DEPLOY / "keyturn.yml", env)

    assert settings.api.listen is not None
    assert not settings.agents


@pytest.mark.parametrize("name", UNITS)
def test_the_units_are_units(name: str) -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keep the case
    unit.read_string(UNITS[name])
    assert {*unit.sections()} == {"Unit", "Service", "Install"}
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    assert f"/{name}" in UNITS[name].splitlines()[0]
