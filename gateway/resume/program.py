"""Interface of a program to its agents' threads, for a local or remote gateway.

`Keyturn` has the gateway in its own process, `RemoteKeyturn` calls one over HTTP. The
wait is durable in both. After any end of the program, the same call continues from the
thread's saved state: decisions from the meantime are carried out, and executed calls
are not executed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Interrupt, StreamMode

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.arguments import check_item_ids, check_timeout
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.protocol.http_api import PendingCall, connected
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.resume.graphs import IsFree
from keyturn.gateway.resume.langgraph_local import (
    STREAM_END,
    Runner,
    check_config,
    kept_graph,
)
from keyturn.gateway.resume.program_runs import ProgramRuns


class Program:
    """Runs the threads of a program's agents behind approvals."""

    _runs: ProgramRuns | None = None
    """The threads, while the program is open."""
    _ungated: Mapping[str, Collection[str]]
    _own_gate: Collection[str] = ()
    """Names of the agents whose own middleware asks people."""
    _saver: BaseCheckpointSaver[Any] | None = None
    """Keeps the threads of graphs without a checkpointer; None: such graphs fail."""

    def _own_gate_of(self, agent: str) -> IsFree:
        """Return which tools of an agent with its own gate the policy puts to nobody.

        A program without the policy knows of none.
        """
        del agent
        return lambda _tool: False

    def _serves(self, agent: str) -> None:
        """Note that the program runs threads of an agent."""

    async def _runner(
        self,
        graph: object,
        agent: str,
        *,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> Runner:
        """Return a runner for a program's graph.

        Raises:
            GraphError: the graph cannot be used.
        """
        self._open()
        self._serves(agent)
        ungated = self._ungated.get(agent, ())
        has_own = agent in self._own_gate
        own_gate = self._own_gate_of(agent) if has_own else None
        ref = f"graph of {agent}"
        kept = await kept_graph(graph, ref, self._saver, ungated, own_gate)
        return Runner(
            kept,
            agent=agent,
            config=config,
            context=context,
            ungated=ungated,
            hands_over=has_own,
        )

    def connected(self) -> AbstractContextManager[None]:
        """Connect agents that run inside the block by other means.

        The process that runs their threads resumes them.
        """
        ungated = {tool for tools in self._ungated.values() for tool in tools}
        return connected(self._open().gateway, ungated=ungated)

    async def run(  # noqa: PLR0913 - one keyword for each option
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

        Call it again with the same thread after a crash, a time-out or a cancellation.
        Without input, or with the same input, it continues from the thread's state and
        returns the result, whichever process ran it. The thread's last input is never
        given twice: to repeat the same words, give their message another ``id``.
        Another input begins a new turn and supersedes waiting calls.

        The thread is advanced with this graph, config and context until it is finished,
        or until it is run again with others. They live in this process: after a
        restart, run the thread again to continue it.

        Args:
            graph: a compiled graph, a `StateGraph`, or a function that returns one; its
                own checkpointer is used. `Keyturn` provides its checkpointer to a graph
                without one, and then builds only types of the state.
            input: the graph's input, such as ``{"messages": [...]}``.
            thread_id: permanent name of the thread.
            agent: the agent's name, as in ``ApprovalMiddleware(agent)``.
            requester: the requester, who cannot approve the thread's calls.
            origin: place of the request in Slack.
            timeout_s: longest wait in total; None for no limit. A time-out or a
                cancellation ends only the wait: the thread continues.
            config: for each step: callbacks, tags, ``configurable``, a recursion limit.
            context: for a graph with a ``context_schema``; approved tools get it too.

        Returns:
            The thread's final state; ``__interrupt__`` in it is a question of another
            library, unless the agent has its own gate.

        Raises:
            TimeoutError: the wait was too long; the thread continues.
            GraphError: graph or config cannot be used, or the run was parked.
            ThreadUnavailable: no thread and no input, a deleted thread, or a close.
            KeyRefused: a gateway in another process refuses the API key.
        """
        check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        run = named_run(agent, thread_id)
        async with wait_at_most(timeout_s, thread_id):
            await self._open().remember(run, requester, origin)
            return await self._open().run(run, runner, input)

    async def stream(  # noqa: PLR0913 - one keyword for each option
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
        """Run a graph like `run`, and yield the chunks of its steps, across every wait.

        The chunks are those of LangGraph's ``astream`` with this ``stream_mode`` and
        ``subgraphs``. A held call appears as an ``__interrupt__`` of its step;
        `pending` describes it. The stream ends when the thread is finished; `wait` then
        returns its state. Steps in another process are awaited but not streamed.
        Leaving the stream early ends nothing: the thread continues.
        """
        check_config(config or {}, thread_id)
        runner = await self._runner(graph, agent, config=config, context=context)
        run = named_run(agent, thread_id)
        runs = self._open()
        await runs.remember(run, requester, origin)
        with runner.streaming(stream_mode, subgraphs=subgraphs) as chunks:
            running = asyncio.create_task(runs.run(run, runner, input))
            # On every end of the run, or `chunks.get` would wait for ever.
            running.add_done_callback(lambda _: chunks.put_nowait(STREAM_END))
            try:
                while (chunk := await chunks.get()) is not STREAM_END:
                    yield chunk
                await running  # raises what the run raised
            finally:
                running.cancel()  # only this wait ends; the thread continues
                await asyncio.gather(running, return_exceptions=True)

    async def wait(
        self,
        graph: object,
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Wait until a thread is finished, without running anything; see `run`.

        For a web application that returns to a run; after a restart, `run` it again.

        Raises:
            TimeoutError: the wait takes longer than ``timeout_s``.
            GraphError: the graph cannot be used, or its thread was given up.
            ThreadUnavailable: there is no such thread.
        """
        runner = await self._runner(graph, agent)
        async with wait_at_most(timeout_s, thread_id):
            return await self._open().wait(named_run(agent, thread_id), runner)

    async def pending(
        self, *, thread_id: str, agent: str = "agent"
    ) -> tuple[PendingCall, ...]:
        """Return a thread's waiting calls, including those in its tools."""
        return await self._open().threads.pending(named_run(agent, thread_id))

    async def withdraw(
        self,
        *,
        thread_id: str,
        agent: str = "agent",
        item_ids: Collection[str] | None = None,
    ) -> tuple[str, ...]:
        """End calls that have not started and that the program no longer wants.

        Their cards and the agent's answers report that they did not run.

        Args:
            thread_id: the thread.
            agent: the agent's name, as for `run`.
            item_ids: the calls (`PendingCall.item_id`); None means all.

        Returns:
            The ids of the calls that were ended now.
        """
        run = named_run(agent, thread_id)
        check_item_ids(item_ids)
        return await self._open().threads.withdraw(run, item_ids)

    async def answers(
        self,
        interrupts: Sequence[Interrupt],
        *,
        thread_id: str,
        agent: str = "agent",
        timeout_s: float | None = 0.0,
    ) -> dict[str, Any]:
        """Return the answers to a graph's open questions, for ``Command(resume=...)``.

        For graphs that a program runs itself, inside `connected`.

        Args:
            interrupts: from the graph's result, or from the thread's state.
            thread_id: the thread.
            agent: the agent's name.
            timeout_s: longest wait for the first answer; None for no limit.

        Returns:
            Interrupt id to answer; empty without a decision in time.

        Raises:
            GraphError: the agent has another name.
        """
        run = named_run(agent, thread_id)
        return await self._open().answers(run, interrupts, timeout_s)

    async def delete(
        self, graph: object, *, thread_id: str, agent: str = "agent"
    ) -> None:
        """Delete a thread and end its waiting calls, including those in its tools.

        The cards report that the conversation moved on. Running calls are not stopped.
        Deleting a missing thread is not an error.

        Args:
            graph: as for `run`.
            thread_id: the thread.
            agent: the agent's name, as for `run`.

        Raises:
            GraphError: the graph cannot be used.
            ThreadUnavailable: another process runs it; nothing was deleted.
        """
        runner = await self._runner(graph, agent)
        await self._open().delete(named_run(agent, thread_id), runner)

    def _open(self) -> ProgramRuns:
        if self._runs is None:
            raise SettingsError(
                "It is not open; use it as: async with Keyturn(...) as tk, or as "
                "async with Keyturn.remote(...) as tk."
            )
        return self._runs


@asynccontextmanager
async def wait_at_most(timeout_s: float | None, thread: str) -> AsyncGenerator[None]:
    """Limit a wait for a thread; None for no limit.

    Raises:
        TimeoutError: its text describes the thread's state and the next step.
        SettingsError: ``timeout_s`` is not a number of seconds.
    """
    check_timeout(timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise  # a step's own error
        raise TimeoutError(
            f"The thread {thread!r} was not finished within {timeout_s:g} s. It goes "
            "on; call run or wait with the same thread_id to wait longer, or pending "
            "to see what waits for people."
        ) from error


def named_run(agent: object, thread_id: object) -> RunRef:
    """Return the run for a program's agent and thread names.

    Raises:
        GraphError: the agent or the thread has no valid name.
    """
    if not isinstance(agent, str) or not agent.strip():
        raise GraphError(
            f"agent={agent!r} names no agent; give the name that the graph's "
            "ApprovalMiddleware(…) has, or leave it out for 'agent'."
        )
    if not isinstance(thread_id, str) or not thread_id:
        raise GraphError(
            f"thread_id={thread_id!r} names no thread; give a text that is not empty, "
            "such as str(...) of a number or a UUID."
        )
    return RunRef(agent=agent, thread=thread_id)
