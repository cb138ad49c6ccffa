"""A program that runs its threads over HTTP, and people's actions at the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.store import Store
from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness


class RemoteProgram(RemoteKeyturn):
    """A remote Keyturn that gives graphs a checkpointer, as the one in process does.

    ``store`` and ``reviews`` are the gateway's, for tests that look there.
    """

    def __init__(
        self,
        url: str,
        key: str,
        harness: ServiceHarness,
        saver: BaseCheckpointSaver[Any],
        retries: RetrySettings,
        **options: Any,
    ) -> None:
        super().__init__(url, api_key=key, retries=retries, **options)
        self.store = harness.store
        self.reviews = harness.reviews
        self.service = self.gateway
        self._saver = saver


@asynccontextmanager
async def remote_program(
    store: Store,
    policy: Policy,
    folder: Path,
    *,
    retries: RetrySettings,
    middlewares: Sequence[Any] = (),
    **options: Any,
) -> AsyncGenerator[Keyturn]:
    """Open a program with separate checkpoints in a folder, next to a gateway.

    It replaces a `Keyturn` in tests that check both in the same way.
    """
    harness = ServiceHarness(store, policy)
    path = str(folder / "checkpoints.sqlite")
    async with (
        AsyncSqliteSaver.from_conn_string(path) as saver,
        serving(harness, middlewares) as api,
        RemoteProgram(
            api.url, api.key(["*"]), harness, saver, retries, **options
        ) as program,
    ):
        yield cast("Keyturn", cast("object", program))
