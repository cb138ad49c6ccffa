"""Remote mode (`Twokey.remote`): run agents beside a gateway in another process.

    async with Twokey.remote("https://gateway.example.com", api_key=key) as tk:
        final = await tk.run(graph, {"messages": [...]}, thread_id="order-78291")

The program has a URL and an API key: no store, no Slack, and nothing that could approve
a call. Its graphs keep their threads with their own checkpointer, and it brings them
forward itself, as `Twokey` does where it has the store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Interrupt, StreamMode

from twokey.gateway.approvals.record import Origin
from twokey.gateway.arguments import (
    check_ungated,
    is_a,
    is_texts,
    require,
    require_secret,
)
from twokey.gateway.client.choice import gateway_at
from twokey.gateway.client.http_threads import HttpThreads
from twokey.gateway.errors import GraphError, SettingsError
from twokey.gateway.protocol.port import connected
from twokey.gateway.protocol.records import Person, RunRef
from twokey.gateway.protocol.remote_runs import PendingCall, RunFacts
from twokey.gateway.remote.thread_runs import RemoteThreadRuns
from twokey.gateway.remote.webhooks import WebhookNews, WebhookVerifier
from twokey.gateway.resume.graphs import as_graph
from twokey.gateway.resume.langgraph_local import (
    LangGraphLocal,
    check_config,
    warn_of_memory,
)
from twokey.gateway.resume.run_rules import (
    check_who_asked,
    named_run,
    streamed,
    wait_at_most,
)
from twokey.gateway.resume.transient_retry import retry_transient
from twokey.gateway.retrying import RetrySettings


class RemoteTwokey:
    """The gateway of another process, for a program that runs its own threads.

    Args:
        url: of the gateway, ``https://…``; by default that of ``TWOKEY_GATEWAY``.
        api_key: by default that of ``TWOKEY_API_KEY``.
        receipt_keys: public keys of the gateway, as `twokey keys list` prints them;
            with any, a claim counts only with a receipt that one of them signed.
        retries: how long a run that fails is retried; None is the default.
        ungated: agent to names of tools that may start ungated; `connected`: them all.
        webhook_secrets: see `handle_webhook`; by default those of
            ``TWOKEY_WEBHOOK_SECRET``.

    Attributes:
        gateway: what agents are connected to; may be given to their middleware.

    Raises:
        SettingsError: when the URL or the key is missing or cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        receipt_keys: Iterable[str] = (),
        retries: RetrySettings | None = None,
        ungated: Mapping[str, Collection[str]] | None = None,
        webhook_secrets: Sequence[str] | None = None,
    ) -> None:
        check_ungated(ungated)
        needed = "give RetrySettings(limit='1h')"
        is_usable = retries is None or is_a(retries, RetrySettings)
        require(is_usable, "retries", retries, needed)
        require_secret(
            webhook_secrets is None or is_texts(webhook_secrets),
            "webhook_secrets",
            webhook_secrets,
            "give a list of texts, as `twokey webhooks secret` prints them (whsec_…)",
        )
        self._webhooks = WebhookVerifier(webhook_secrets)
        self.gateway = gateway_at(url, api_key, receipt_keys)
        self._threads = HttpThreads(self.gateway.connection)
        self._retries = retries or RetrySettings()
        self._ungated = ungated or {}
        self._runs: RemoteThreadRuns | None = None

    async def __aenter__(self) -> Self:
        """Begin to work; that the gateway is away now does no harm."""
        self._runs = RemoteThreadRuns(self.gateway, self._threads, self._retries)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Let running steps stop; approvals stay open, and threads where they are."""
        runs, self._runs = self._open(), None
        await runs.close()
        await self.gateway.aclose()

    def connected(self) -> AbstractContextManager[None]:
        """Connect the agents that are run inside the block by other means."""
        ungated = {tool for tools in self._ungated.values() for tool in tools}
        return connected(self.gateway, ungated=ungated)

    async def run(  # noqa: PLR0913 - what a program may say of a run, by name
        self,
        graph: object,
        input: object = None,  # noqa: A002 - LangGraph's own word
        *,
        thread_id: str,
        agent: str = "agent",
        requester: Person | None = None,
        origin: Origin | None = None,
        timeout_s: float | None = None,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> dict[str, Any]:
        """Run a graph and wait, durably, until its thread is finished.

        See `Twokey.run`. The graph has a checkpointer of its own; processes with the
        same one may run a thread at the same time: one of them works on it.

        Raises:
            TimeoutError: when it takes longer; the thread goes on all the same.
            GraphError: when graph or config cannot be used, or an answer does not fit.
            ThreadUnavailable: when there is no thread and no input, or it was deleted.
            KeyRefused: when the gateway refuses the API key.
        """
        check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        run = named_run(agent, thread_id)
        async with wait_at_most(timeout_s, thread_id):
            await self._remember(run, requester, origin)
            return await self._open().run(run, runner, input)

    async def stream(  # noqa: PLR0913 - what `run` takes, and how to stream
        self,
        graph: object,
        input: object = None,  # noqa: A002 - LangGraph's own word
        *,
        thread_id: str,
        agent: str = "agent",
        stream_mode: StreamMode | Sequence[StreamMode] = "updates",
        subgraphs: bool = False,
        requester: Person | None = None,
        origin: Origin | None = None,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> AsyncGenerator[Any]:
        """Run a graph like `run`, and yield what its steps stream, across every wait.

        See `Twokey.stream`.
        """
        check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        run = named_run(agent, thread_id)
        await self._remember(run, requester, origin)
        runs = self._open()
        chunks = streamed(
            runner,
            lambda: runs.run(run, runner, input),
            stream_mode,
            subgraphs=subgraphs,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def wait(
        self,
        graph: object,
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Wait until a thread is finished, without running anything; see `run`.

        Raises:
            TimeoutError: when it takes longer than ``timeout_s``.
            GraphError: when the graph cannot be used, or its thread was given up here.
            ThreadUnavailable: when there is no such thread.
        """
        runner = await self._runner(graph, agent)
        run = named_run(agent, thread_id)
        async with wait_at_most(timeout_s, thread_id):
            return await self._open().wait(run, runner)

    async def pending(
        self, *, thread_id: str, agent: str = "agent"
    ) -> tuple[PendingCall, ...]:
        """Return the calls of a thread, and inside its tools, that wait for people."""
        return await self._threads.pending(named_run(agent, thread_id))

    async def withdraw(
        self,
        *,
        thread_id: str,
        agent: str = "agent",
        item_ids: Collection[str] | None = None,
    ) -> tuple[str, ...]:
        """End calls that wait, because the program no longer wants them.

        See `Twokey.withdraw`.
        """
        run = named_run(agent, thread_id)
        return await self._threads.withdraw(run, item_ids)

    async def answers(
        self,
        interrupts: Sequence[Interrupt],
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = 0.0,
    ) -> dict[str, Any]:
        """Return the answers to a graph's open questions, for ``Command(resume=...)``.

        For graphs that a program runs itself, inside `connected`; see `Twokey.answers`.

        Raises:
            GraphError: when an answer does not fit.
        """
        run = named_run(agent, thread_id)
        return await self._open().answers(run, interrupts, timeout_s)

    async def handle_webhook(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        graph: object = None,
    ) -> WebhookNews:
        """Verify a webhook of the gateway, and let the thread that it names go on.

        What runs here goes on at once instead of with its next question to the
        gateway. Where nothing here runs the thread and ``graph`` is given, it is taken
        up in the background. A message that comes twice does nothing the second time;
        one that is lost does no harm, since threads that run here ask by themselves.

        Args:
            headers: of the request.
            body: of the request, as it was received.
            graph: of the thread's agent.

        Raises:
            NotVerified: when the gateway did not send this now; answer 401 or 403.
            SettingsError: when there is no secret to verify it with.
            GraphError: when the graph cannot be used.
        """
        news = self._webhooks.verify(headers, body)
        if not (news.is_new and news.is_decision):
            return news
        run = RunRef(agent=news.agent, thread=news.thread)
        if not self._open().wake(run) and graph is not None:
            runner = await self._runner(graph, news.agent)
            await self._open().take_up(run, runner)
        return news

    async def delete(
        self, graph: object, *, thread_id: str, agent: str = "agent"
    ) -> None:
        """Delete a thread, and end what waits in it, inside its tools too.

        See `Twokey.delete`.

        Raises:
            GraphError: when the graph cannot be used.
            ThreadUnavailable: while somebody runs it; nothing was deleted.
        """
        runner = await self._runner(graph, agent)
        await self._open().delete(named_run(agent, thread_id), runner)

    async def _remember(
        self, run: RunRef, requester: Person | None, origin: Origin | None
    ) -> None:
        check_who_asked(requester, origin)
        if requester is None and origin is None:
            return
        facts = RunFacts(
            run=run,
            requester=requester,
            channel=origin.channel if origin else "",
            thread_ts=origin.thread_ts if origin else "",
        )
        # Before the run: what it asks must not be decided by who asked for it.
        await retry_transient(lambda: self._threads.remember(facts))

    async def _runner(
        self,
        graph: object,
        agent: str,
        *,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> LangGraphLocal:
        self._open()
        ungated = self._ungated.get(agent, ())
        compiled = await as_graph(graph, f"graph of {agent}", ungated)
        saver = getattr(compiled, "checkpointer", None)
        if not isinstance(saver, BaseCheckpointSaver):
            raise GraphError(
                f"The graph of {agent} keeps its threads nowhere: compile it with a "
                "checkpointer of its own, such as AsyncPostgresSaver."
            )
        warn_of_memory(
            compiled, "compile the graph with AsyncPostgresSaver, for instance"
        )
        return LangGraphLocal(
            compiled, agent=agent, config=config, context=context, ungated=ungated
        )

    def _open(self) -> RemoteThreadRuns:
        if self._runs is None:
            raise SettingsError("Use it as: async with Twokey.remote(...) as tk: ...")
        return self._runs
