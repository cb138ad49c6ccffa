"""A program that runs its threads over HTTP, and what people do on the other side."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from typing_extensions import override

from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness
from twokey.gateway.embed import Twokey
from twokey.gateway.policy.rules import Policy
from twokey.gateway.remote.program import RemoteTwokey
from twokey.gateway.resume.graphs import as_graph, attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.retrying import RetrySettings
from twokey.gateway.store.store import Store


class RemoteProgram(RemoteTwokey):
    """A remote Twokey that gives graphs a checkpointer, as the one in process does.

    ``store`` and ``reviews`` are the gateway's, for tests that look there.
    """

    def __init__(
        self,
        url: str,
        key: str,
        harness: ServiceHarness,
        saver: BaseCheckpointSaver[Any],
        retries: RetrySettings,
    ) -> None:
        super().__init__(url, api_key=key, retries=retries)
        self.store = harness.store
        self.reviews = harness.reviews
        self.service = self.gateway
        self._saver = saver

    @override
    async def _runner(self, graph: object, agent: str, **given: Any) -> LangGraphLocal:
        compiled = await as_graph(graph, f"graph of {agent}", ())
        if getattr(compiled, "checkpointer", None) is None:
            compiled = attached(compiled, self._saver)
        return await super()._runner(compiled, agent, **given)


@asynccontextmanager
async def remote_program(
    store: Store,
    policy: Policy,
    folder: Path,
    *,
    retries: RetrySettings,
    middlewares: Sequence[Any] = (),
) -> AsyncGenerator[Twokey]:
    """Open a program with its own checkpoints in a folder, beside a gateway.

    It stands for a `Twokey` in tests that hold both to the same.
    """
    harness = ServiceHarness(store, policy)
    path = str(folder / "checkpoints.sqlite")
    async with (
        AsyncSqliteSaver.from_conn_string(path) as saver,
        serving(harness, middlewares) as api,
        RemoteProgram(api.url, api.key(["*"]), harness, saver, retries) as program,
    ):
        yield cast("Twokey", cast("object", program))
