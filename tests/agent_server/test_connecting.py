"""Keys, unreachable servers, and the doctor's lines about them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from keyturn.agent.scripted_model import scripted
from keyturn.cli.reviewer_checks import State
from keyturn.cli.server_checks import check_servers
from keyturn.connect import agent_server
from keyturn.connect.agent_server import AgentServer, HostUnavailable
from keyturn.connect.servers import connecting_servers
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service_settings import ServerSettings
from keyturn.gateway.store.store import Store
from tests.agent_server.bench import WITHIN_S, Bench, bench, settings
from tests.agent_server.dev_server import (
    ROOT,
    DevServer,
    Process,
    connected,
    dev_server,
)
from tests.agent_server.test_decisions import REFUND, paid
from tests.docs.test_readme import blocks
from tests.levels import size
from tests.tcp_proxy import Proxy

PAGE = (ROOT / "docs" / "agent-server.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]


def refund(order: str) -> str:
    """Pay an order back."""
    return order


async def checks(tmp_path: Path, **server: Any) -> list[tuple[State, str]]:
    given = ServerSettings.model_validate(server)
    settings = Settings.model_construct(servers={"crm": given}, folder=tmp_path)
    return [(one.state, one.text) async for one in check_servers(settings)]


async def test_the_doctor_shows_the_graphs(server: DevServer, tmp_path: Path) -> None:
    graphs = {"stock": {"agent": "billing"}, "plain": {"agent": "plain"}}

    [(state, text)] = await checks(tmp_path, url=server.url, graphs=graphs)

    assert state is State.GOOD
    assert text.endswith("graphs: stock as billing, plain; 0 threads may wait")


async def test_the_doctor_names_an_unasked_thread(on: Bench, tmp_path: Path) -> None:
    """Its question only resembles a format, so nothing is guessed."""
    half: dict[str, Any] = {"action_requests": [{"name": "refund", "args": {}}]}
    thread = await on.asked("plain", {"ask": [half]})
    known = await on.asked("plain", {"ask": ["Which account?"]})
    graphs = {"plain": {"agent": "plain"}}

    [(_, text), *unknown] = await checks(tmp_path, url=on.server.url, graphs=graphs)

    assert text.endswith("2 threads may wait")
    [(state, named)] = unknown
    assert state is State.SKIPPED
    assert thread in named
    assert known not in named
    assert await on.items(thread) == []


async def test_the_doctor_refuses_an_old_langgraph(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        is_about = request.path == "/info"
        old = {"version": "0.2.1", "langgraph_py_version": "0.5.4"}
        return web.json_response(old if is_about else [{"graph_id": "x"}])

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as other:
        given = {"url": str(other.make_url("")), "graphs": {"x": {"agent": "x"}}}
        [(state, text)] = await checks(tmp_path, **given)

    assert state is State.BAD
    assert text == "it runs LangGraph 0.5; Keyturn needs 0.6 or newer."


async def test_a_missing_graph_is_named(server: DevServer, tmp_path: Path) -> None:
    graphs = {"refunds": {"agent": "billing"}}

    [(state, text)] = await checks(tmp_path, url=server.url, graphs=graphs)

    assert state is State.BAD
    assert text.startswith("it has no graph refunds; its graphs: camel, deep, ")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    """Start a server that asks for a key."""
    folder = tmp_path_factory.mktemp("guarded-server")
    shutil.copy(ROOT / "examples" / "agent_server_auth.py", folder / "auth.py")
    keys = {"APP_KEY": "key-of-the-app", "KEYTURN_KEY": "key-of-keyturn"}
    auth = {"path": "./auth.py:auth"}
    graphs = {"stock": "graphs.py:stock"}
    with dev_server(folder, graphs, env=keys, auth=auth) as started:
        yield started


@pytest.fixture
async def app(guarded: Process) -> AsyncGenerator[DevServer]:
    """Connect an application with another key."""
    async with connected(guarded, {"X-Api-Key": "key-of-the-app"}) as found:
        yield found


def with_key(tmp_path: Path, url: str, key: str) -> dict[str, Any]:
    file = tmp_path / "key"
    file.write_text(f"{key}\n", encoding="utf-8")
    return {
        "url": url, "key_file": str(file), "graphs": {"stock": {"agent": "a-stock"}},
    }  # fmt: skip


async def test_the_doctor_warns_of_a_shared_key(app: DevServer, tmp_path: Path) -> None:
    given = with_key(tmp_path, app.url, "key-of-keyturn")

    [(state, _), (warned, text)] = await checks(tmp_path, **given)

    assert (state, warned) == (State.GOOD, State.SKIPPED)
    assert "run with the rights of this key" in text


async def test_a_wrong_key_is_named(app: DevServer, tmp_path: Path) -> None:
    [(state, text)] = await checks(tmp_path, **with_key(tmp_path, app.url, "stolen"))

    assert state is State.BAD
    assert "refuses the key (401). Write a valid one into its 'key_file'" in text
    assert "stolen" not in text


async def test_the_key_resumes_a_thread_of_another_user(
    app: DevServer, store: Store, tmp_path: Path
) -> None:
    given = with_key(tmp_path, app.url, "key-of-keyturn")
    async with bench(app, store) as on:
        server = ServerSettings.model_validate(given)
        async with aiohttp.ClientSession() as session:
            on.loop = on.connector(AgentServer("crm", server, session))
            thread = await on.asked("stock", [[REFUND]])
            await on.decide(thread, Approve())
            await on.tick(2)

        # As documented: with the identity of the connector.
        assert on.server.done(thread) == [{**paid(7.0), "as": "keyturn"}]


async def test_only_keyturn_answers_with_the_pages_handlers(app: DevServer) -> None:
    thread = await app.thread("stock", [[REFUND]])
    [one] = await app.questions(thread)
    approved = {"decisions": [{"type": "approve"}]}
    refused: list[tuple[str, Any]] = [
        (
            "runs",
            {"assistant_id": "stock", "command": {"resume": {one["id"]: approved}}},
        ),
        ("state", {"values": {"messages": []}, "as_node": "model"}),
    ]
    for path, body in refused:
        url = f"{app.url}/threads/{thread}/{path}"
        async with app.session.post(url, json=body) as reply:
            assert (reply.status, (await reply.json())["detail"]) == (
                403,
                "People decide.",
            )
    assert app.done(thread) == []
    assert await app.questions(thread) == [one]


def test_the_agent_of_the_page_is_an_agent() -> None:
    names: dict[str, Any] = {"model": scripted([]), "refund": refund}
    names["look_up_order"] = refund

    exec(blocks("python", PAGE)[0], names)  # noqa: S102 - of our page

    assert names["asks"].interrupt_on["refund"]
    assert "HumanInTheLoopMiddleware.after_model" in names["billing"].nodes


def test_the_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    (tmp_path / "keyturn.yml").write_text(blocks("yaml", PAGE)[0], encoding="utf-8")

    settings = Settings.load(tmp_path / "keyturn.yml", {})

    assert settings.servers["crm"].key_file == tmp_path / "crm.key"
    assert settings.servers["crm"].every.total_seconds() == 2
    assert settings.agent_names == ("billing",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("a\nb", "is not one line of plain characters"),
        ("schlüssel", "is not one line of plain characters"),
    ],
)
async def test_a_missing_key_is_refused(tmp_path: Path, text: str, why: str) -> None:
    given = with_key(tmp_path, "http://127.0.0.1:1", text)

    with pytest.raises(SettingsError, match=why):
        ServerSettings.model_validate(given).read_key()
    [(state, told)] = await checks(tmp_path, **given)
    assert state is State.BAD
    assert why in told


async def test_the_doctor_names_a_missing_file_of_a_key(tmp_path: Path) -> None:
    given = with_key(tmp_path, "http://127.0.0.1:1", "key")
    (tmp_path / "key").unlink()

    [(state, text)] = await checks(tmp_path, **given)

    assert state is State.BAD
    assert "There is no file" in text


async def test_a_server_that_is_away_loses_nothing(on: Bench) -> None:
    async with (
        Proxy(on.server.url) as proxy,
        bench(on.server, on.people.store, url=proxy.url) as away,
    ):
        thread = await away.asked("stock", [[REFUND]])
        proxy.lead_to("http://127.0.0.1:1")
        proxy.reset()
        await away.decide(thread, Approve())
        with pytest.raises(HostUnavailable, match="did not answer"):
            await away.tick()
        assert await away.states(thread) == [ItemState.AUTHORIZED]
        proxy.lead_to(on.server.url)

        await away.tick(2)

        assert away.server.done(thread) == [paid(7.0)]
        assert await away.states(thread) == [ItemState.HANDED_OVER]


async def test_a_proxy_without_its_server_deletes_no_thread(on: Bench) -> None:
    """While its routes change, it answers 404 by itself."""
    are_there = False

    async def forward(request: web.Request) -> web.Response:
        if not are_there and request.path != "/threads/search":
            return web.Response(status=404, text="404 page not found")
        url, data = f"{on.server.url}{request.rel_url}", await request.read()
        kind = {"Content-Type": "application/json"}
        async with on.server.session.request(
            request.method, url, data=data or None, headers=kind
        ) as reply:
            body = await reply.read()
        return web.Response(status=reply.status, body=body, headers=kind)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    thread = await on.asked("stock", [[REFUND]])
    await on.decide(thread, Approve())
    async with TestServer(app) as proxy:
        given = settings(str(proxy.make_url("")).rstrip("/"), ["stock"])
        host = AgentServer("crm", given, on.server.session)
        on.loop = on.connector(host)
        await on.tick()
        assert await on.states(thread) == [ItemState.AUTHORIZED]
        are_there = True

        await on.tick(2)

    assert on.server.done(thread) == [paid(7.0)]
    assert await on.states(thread) == [ItemState.HANDED_OVER]


async def test_a_server_that_is_away_from_the_start_is_found_later(
    on: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    thread = await on.server.thread("stock", [[REFUND]])
    async with (
        Proxy("http://127.0.0.1:1") as proxy,
        bench(on.server, on.people.store, url=proxy.url) as away,
    ):
        working = asyncio.create_task(away.loop.run())
        async with asyncio.timeout(WITHIN_S):
            while "outage.began" not in caplog.text:  # noqa: ASYNC110 - of a log
                await asyncio.sleep(0.01)
        proxy.lead_to(on.server.url)
        await away.until(thread, ItemState.PENDING)
        # A decision wakes the connector by an event.
        await away.decide(thread, Approve())
        await away.until(thread, ItemState.HANDED_OVER)
        working.cancel()
        await asyncio.wait([working])

    assert on.server.done(thread) == [paid(7.0)]
    assert caplog.text.count("outage.began") == 1


async def test_another_server_there_is_named(on: Bench, tmp_path: Path) -> None:
    async with TestServer(web.Application()) as other:
        given = {"url": str(other.make_url("")), "graphs": {"x": {"agent": "x"}}}
        [(state, text)] = await checks(tmp_path, **given)

    assert state is State.BAD
    assert "is it an Agent Server of LangGraph?" in text


class Counted(AgentServer):
    """A host that counts its requests."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.paths = list[str]()

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        self.paths.append(path)
        return await super()._ask(method, path, body, headers)


async def test_many_waiting_threads_cost_few_requests(
    on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, page = size(deep=250, short=13), size(deep=100, short=5)
    monkeypatch.setattr(agent_server, "PAGE", page)
    await asyncio.gather(*(on.server.thread("stock", [[REFUND]]) for _ in range(count)))
    one = await on.server.thread("stock", [[REFUND]])
    [question] = await on.server.questions(one)
    broken: dict[str, Any] = {question["id"]: {"decisions": []}}
    await on.server.run(one, "stock", command={"resume": broken})
    given = settings(on.server.url, ["stock"])
    host = Counted("crm", given, on.server.session)
    on.loop = on.connector(host)
    await on.tick()
    assert len([it for it in on.server.threads if await on.states(it)]) == count + 1
    host.paths.clear()

    await on.loop.tick()
    await on.loop.settled()

    # Three pages of those that wait, and one of those in error.
    assert host.paths == ["/threads/search"] * 4


async def test_one_process_works_for_a_server_until_it_ends(
    on: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one takes over."""
    caplog.set_level("INFO")
    given = Settings.model_construct(
        servers={"crm": settings(on.server.url, ["stock"])}, tenant="default"
    )
    store, service = on.people.store, on.people.agents
    async with connecting_servers(given, store, service):
        thread = await on.server.thread("stock", [[REFUND]])
        await on.until(thread, ItemState.PENDING)
        async with AsyncExitStack() as second:
            other = connecting_servers(given, store, service)
            await second.enter_async_context(other)
            await on.decide(thread, Approve())
            await on.until(thread, ItemState.HANDED_OVER)
            assert caplog.text.count("server.connected") == 1

    async with connecting_servers(given, store, service):
        later = await on.server.thread("stock", [[REFUND]])
        await on.until(later, ItemState.PENDING)
    assert on.server.done(thread) == [paid(7.0)]


async def test_a_slow_server_is_asked_again_later(
    on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Proxy(on.server.url) as proxy,
        bench(on.server, on.people.store, url=proxy.url) as slow,
    ):
        thread = await slow.asked("stock", [[REFUND]])
        await slow.decide(thread, Approve())
        monkeypatch.setattr(agent_server, "TIMEOUT_S", 0.2)
        proxy.close()
        with pytest.raises(HostUnavailable, match=r"no answer within 0\.2 s"):
            await slow.tick()
        monkeypatch.undo()
        proxy.open()

        await slow.tick(2)

        assert slow.server.done(thread) == [paid(7.0)]
        assert await slow.states(thread) == [ItemState.HANDED_OVER]
