"""Give every test a real, empty, durable Valkey, and check its invariants."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path

import httpx
import pytest

from keyturn.gateway.policy import load
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.lifetimes import wrong_lifetimes
from tests.patience import LEASE_MS, WAIT_S, be_patient
from tests.resealing import reseal_writes
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, SentinelSet, programs

pytest_plugins = ["tests.levels"]

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}


@pytest.fixture(scope="session", autouse=True)
def slack_waits() -> Generator[pytest.MonkeyPatch]:
    """Wait longer for answers in this process, and look for work more often."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        yield patch


@pytest.fixture(scope="session", autouse=True)
def resealed_writes() -> Generator[None]:
    """Seal the records anew that tests write into."""
    with pytest.MonkeyPatch.context() as patch:
        reseal_writes(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_ssl_context() -> Generator[None]:
    """Read the certificates of the world once: each client of httpx would read them.

    All that tests ask by it is on loopback, without TLS.
    """
    with pytest.MonkeyPatch.context() as patch:
        once = cache(httpx.create_ssl_context)
        patch.setattr("httpx._transports.default.create_ssl_context", once)
        yield


@pytest.fixture(autouse=True)
def logging_kept() -> Generator[None]:
    """Leave logging as it was before the test."""
    root, ours = logging.getLogger(), logging.getLogger("keyturn")
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def each_policy_once() -> Generator[None]:
    """Load each text of a policy once: many tests begin with the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        once = lru_cache(maxsize=256)(load.load_with_lines)
        patch.setattr(load, "load_with_lines", once)
        yield


@pytest.fixture(scope="session")
def valkey_url() -> Generator[str]:
    """Start one embedded Valkey for each process of tests, as the product does.

    ``KEYTURN_TEST_REDIS`` names another server instead. Everything on it is deleted,
    and it is made as durable as Keyturn demands.
    """
    named = os.environ.get("KEYTURN_TEST_REDIS")
    if named:
        # The tests of one process empty the store while another's are using it.
        assert "PYTEST_XDIST_WORKER" not in os.environ, "KEYTURN_TEST_REDIS: use -n 0"
        asyncio.run(make_durable(named))
        yield named
        return
    folder = Path(tempfile.mkdtemp(prefix="tk-test-"))
    with EmbeddedEngine(folder) as engine:
        yield engine.url
    shutil.rmtree(folder, ignore_errors=True)


async def make_durable(url: str) -> None:
    """Give a server the settings without which Keyturn refuses it."""
    conn = Connection(url)
    for name, value in DURABLE.items():
        await conn.command("CONFIG SET", name, value)
    await conn.close()


@pytest.fixture(scope="session")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    """Give the signing keys of every role."""
    made = Keyring(tmp_path_factory.mktemp("keys"), makes=Role)
    made.make_missing(datetime.fromtimestamp(0, UTC))
    return made


@pytest.fixture
def empty_url(valkey_url: str) -> str:
    """Give the URL of an empty store, for commands that open it themselves."""
    asyncio.run(_empty(valkey_url))
    return valkey_url


async def _empty(url: str) -> None:
    conn = Connection(url)
    await conn.command("FLUSHALL")
    await conn.close()


@pytest.fixture
async def store(valkey_url: str, keyring: Keyring) -> AsyncGenerator[Store]:
    """Give an empty store; afterwards each key lives as long as it is needed."""
    opened = Store(valkey_url, secrets=SECRETS, lease_ms=LEASE_MS)
    opened.keyring = keyring
    await opened.conn.command("FLUSHALL")
    yield opened
    wrong = await wrong_lifetimes(opened.conn)
    await opened.close()
    assert not wrong, "; ".join(wrong)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    """Give the services over the store, under the policy of the harness."""
    return ServiceHarness(store)


@pytest.fixture
def server_program(request: pytest.FixtureRequest) -> str:
    """Give the path of a server of the kind that `tests.levels` chooses."""
    found = programs().get(request.param)
    if found is None:
        pytest.skip(f"this machine has no {request.param}-server")
    return found


@pytest.fixture
def cluster(server_program: str, tmp_path: Path) -> Generator[Cluster]:
    """Start a cluster of three masters without replicas."""
    with Cluster(server_program, tmp_path) as started:
        yield started


@pytest.fixture
def replicated_cluster(server_program: str, tmp_path: Path) -> Generator[Cluster]:
    """Start a cluster of three masters, each with one replica."""
    with Cluster(server_program, tmp_path, replicas=1) as started:
        yield started


@pytest.fixture
def sentinel_set(server_program: str, tmp_path: Path) -> Generator[SentinelSet]:
    """Start a master, two replicas, and three Sentinels that watch them."""
    with SentinelSet(server_program, tmp_path) as started:
        yield started


async def eventually(
    condition: Callable[[], Awaitable[object] | bool], *, within_s: float = WAIT_S
) -> None:
    """Wait until a condition is true; fail when it is not in time."""
    async with asyncio.timeout(within_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)
