"""Run one test with agents in the gateway's process and over HTTP.

A test that submits as an agent through the shared stacks (`ServiceHarness`, the bot's
`Stack`) runs once in the process of the gateway, and once again, as ``[http]``, with a
client that has only an API key. The short form runs one test of each file again, and
the fast level none. A folder takes part by a ``conftest.py`` that imports the fixture
`transport`. `IN_PROCESS_ONLY` names the exceptions, with reasons.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, nullcontext
from enum import StrEnum
from functools import cache, cached_property
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.client import http_connection
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import LeaseRef
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.scripts import fences
from keyturn.gateway.store.store import Store
from tests.api.api_stack import serving
from tests.bot.bot_stack import Stack
from tests.in_process_only import IN_PROCESS_ONLY, RACES_IN_ONE_PROCESS
from tests.levels import is_deep
from tests.races.asking_processes import Place
from tests.service.harness import ServiceHarness
from tests.service.tenant_side import TenantSide

ROOT = Path(__file__).parents[1]
_PORT = frozenset(name for name, it in vars(Gateway).items() if iscoroutinefunction(it))
_HAS_AGENTS = re.compile(r"\b(ServiceHarness|harness|Stack|TenantSide|Transport)\b")
_ASKS = re.compile(r"\.agents\b")
_OVER_HTTP: dict[Path, str] = {}
"""By file, the test that runs over HTTP also in the short form."""

_ASK_OTHERWISE = frozenset({"test_auto_runs.py", "test_stricter_policy.py"})


class Transport(StrEnum):
    """Where the agents of a test are."""

    IN_PROCESS = "in process"
    HTTP = "http"

    def share(self, times: int) -> int:
        """Return the number of repetitions of a test: fewer over HTTP.

        The orders of writes to the store are played in one process.
        """
        return times if self is Transport.IN_PROCESS else max(1, times // 4)


class Served(Protocol):
    """A stack of the tests with agents."""

    store: Store
    policy: Policy
    agents: AgentService
    closing: AsyncExitStack


class AgentsOverHttp:
    """An `AgentService` whose port is asked over HTTP; the rest of it is as it is."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._place: Place | None = None
        self._gateway: HttpGateway | None = None

    @cached_property
    def _here(self) -> AgentService:
        served = self._served
        tenant = getattr(served, "tenant", "default")
        return AgentService(served.store, lambda: served.policy, tenant=tenant)

    def __getattr__(self, name: str) -> Any:
        if name not in _PORT:
            return getattr(self._here, name)

        async def ask(*given: Any, **named: Any) -> Any:
            gateway = await self._connected()
            with _lease(given[0]):
                return await getattr(gateway, name)(*given, **named)

        return ask

    def keeps_calls(self) -> bool:
        """Return what `HttpGateway` does."""
        return True

    async def place(self) -> Place:
        """Return the address at which the agents of a separate process submit."""
        if self._place is None:
            # It reads store and policy alone.
            harness = cast("ServiceHarness", cast("object", self._served))
            tenant = getattr(self._served, "tenant", "default")
            api = await self._served.closing.enter_async_context(
                serving(harness, tenant=tenant)
            )
            api.api.limits = RateLimits(10**9)
            self._place = Place(api.url, api.key(["*"]))
        return self._place

    async def _connected(self) -> HttpGateway:
        if self._gateway is None:
            self._gateway = HttpGateway(*await self.place())
            self._served.closing.push_async_callback(self._gateway.aclose)
        return self._gateway


async def place_of(served: ServiceHarness) -> Place:
    """Return where other processes of agents ask."""
    agents: object = served.agents
    if isinstance(agents, AgentsOverHttp):
        return await agents.place()
    return Place(served.store.conn.url)


def _lease(asked: object) -> Any:
    """Name the test's lease, as a program that runs threads does."""
    held = fences.current()
    ref = getattr(asked, "ref", asked)
    if held is None or not isinstance(ref, TurnRef | RunRef):
        return nullcontext()
    run = ref.run_ref if isinstance(ref, TurnRef) else ref
    text = LeaseRef(run, held.token, held.fence).text
    return run_context.under_lease(lambda: text)


@pytest.fixture(autouse=True)
async def transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Transport]:
    """Make the agents of every stack of the test submit this way."""
    found = getattr(request, "param", Transport.IN_PROCESS)
    made: list[AsyncExitStack] = []
    if found is Transport.HTTP:
        # A temporary refusal of the gateway is reported at once.
        monkeypatch.setattr(http_connection, "LONGEST_PAUSE_S", 0.0)
        for kind in (ServiceHarness, Stack, TenantSide):
            monkeypatch.setattr(kind, "__post_init__", _asking_over_http(kind, made))
    yield found
    for opened in made:
        await opened.aclose()


def _asking_over_http(
    kind: type[ServiceHarness | Stack | TenantSide], made: list[AsyncExitStack]
) -> Any:
    before: Any = kind.__post_init__

    def changed(served: Any) -> None:
        before(served)
        served.agents = AgentsOverHttp(served)
        served.resumes = False
        if _is_in_loop():
            made.append(served.closing)

    return changed


def _is_in_loop() -> bool:
    """Return whether a loop runs; a test with its own loops closes the stack there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that submit as agents over both transports."""
    if "transport" not in metafunc.fixturenames:
        return
    path = metafunc.definition.path
    name = f"{path.relative_to(ROOT).as_posix()}::{metafunc.function.__name__}"
    is_fast = metafunc.config.getoption("--fast")
    if is_fast or not asks(path) or name in IN_PROCESS_ONLY:
        return
    if not _may_ask(metafunc.function):
        return
    if not is_deep() and _OVER_HTTP.setdefault(path, name) != name:
        return
    params = [
        pytest.param(Transport.IN_PROCESS, id=pytest.HIDDEN_PARAM),
        pytest.param(Transport.HTTP, id="http"),
    ]
    metafunc.parametrize("transport", params, indirect=True)


def _may_ask(test: Any) -> bool:
    """Return whether a test can await an answer; others take the fixture."""
    inner = test.hypothesis.inner_test if hasattr(test, "hypothesis") else test
    return iscoroutinefunction(inner) or "transport" in signature(inner).parameters


@cache
def asks(path: Path) -> bool:
    """Return whether the tests of a file submit as agents, by a shared stack.

    Among the services, that is a file that submits for more than a call to decide.
    """
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "service":
        return path.name in _ASK_OTHERWISE or bool(_ASKS.search(text))
    if path.parent.name == "races" and path.name in RACES_IN_ONE_PROCESS:
        return False
    return bool(_HAS_AGENTS.search(text))
