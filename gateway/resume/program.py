"""Interface of a program to its agents' threads, for a local or remote gateway.

`Keyturn` has the gateway in its own process, `RemoteKeyturn` calls one over HTTP. The
wait is durable in both. After any end of the program, the same call continues from the
thread's saved state: decisions from the meantime are carried out, and executed calls
are not executed again.

A wait can be bounded or cancelled at any time: only the wait ends then. The step runs
in a separate task, because a step that stops in the middle leaves its thread to be
repaired. It is cancelled only when the program ends, after a grace period.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Interrupt, StreamMode

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.arguments import check_item_ids, check_timeout
from keyturn.gateway.errors import (
    GraphError,
    KeyturnError,
    SettingsError,
    ThreadUnavailable,
)
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.http_api import PendingCall, RunFacts
from keyturn.gateway.protocol.port import Gateway, connected
from keyturn.gateway.protocol.records import NO_SLACK_ID, Person, RunRef
from keyturn.gateway.resume.advancer import Advancer, Threads
from keyturn.gateway.resume.diagnosis import diagnose
from keyturn.gateway.resume.graphs import strict_serializer
from keyturn.gateway.resume.langgraph_local import (
    STREAM_END,
    LangGraphLocal,
    check_config,
    kept_graph,
    pending_of,
)
from keyturn.gateway.resume.runner import (
    Answers,
    PendingInterrupt,
    ThreadState,
    asked_items,
)
from keyturn.gateway.resume.transient_retry import backoff_s, retry_transient
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.runs.leases import while_held

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_S = 1.0
"""Delay before the next attempt at a thread that another process runs."""
POLL_S = 25.0
"""Duration of one wait for an answer: shorter than the request limit of proxies."""
GRACE_S = 25.0
"""Time that running steps have when the program ends."""


class NoThread(ThreadUnavailable):
    """There is no such thread."""

    def __init__(self, run: RunRef, hint: str) -> None:
        super().__init__(f"There is no thread {run.thread!r} of {run.agent!r}{hint}.")


class ProgramRuns:
    """Threads that a program runs itself.

    Args:
        gateway: the agents' gateway.
        threads: the gateway's records of the threads.
    """

    def __init__(self, gateway: Gateway, threads: Threads) -> None:
        self.gateway = gateway
        self.threads = threads
        self._advancer = Advancer(threads)
        self._closing = asyncio.Event()

    @abstractmethod
    async def run(
        self, run: RunRef, runner: LangGraphLocal, given: object
    ) -> dict[str, Any]:
        """Give a thread its input, unless it has it, and wait for its end.

        The wait also ends at a question of another library.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no thread and no input, or it was deleted.
        """

    @abstractmethod
    async def wait(self, run: RunRef, runner: LangGraphLocal) -> dict[str, Any]:
        """Wait for a thread's end, in any process; see `run`.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no such thread.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for running steps, then cancel the rest after `GRACE_S`."""

    @abstractmethod
    async def _answers(
        self, run: RunRef, asked: Sequence[PendingInterrupt], wait_s: float
    ) -> Answers:
        """Return the answers to a thread's questions; wait for the first one."""

    async def remember(
        self, run: RunRef, requester: Person | None, origin: Origin | None
    ) -> None:
        """Save the requester and the origin of a run, where provided.

        Before the run: the requester must not decide its calls.
        """
        check_who_asked(requester, origin)
        if requester is not None or origin is not None:
            facts = RunFacts(
                run=run,
                requester=requester,
                channel=origin.channel if origin else "",
                thread_ts=origin.thread_ts if origin else "",
            )
            await retry_transient(lambda: self.threads.remember(facts))

    async def answers(
        self, run: RunRef, interrupts: Sequence[Interrupt], timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the answers to a thread's questions; wait for the first one.

        Raises:
            GraphError: an answer does not fit its question.
            SettingsError: ``timeout_s`` is not a number of seconds.
        """
        check_timeout(timeout_s)
        asked = [pending_of(one) for one in interrupts]
        if not asked_items(asked):
            return {}
        clock = asyncio.get_running_loop().time
        ends = None if timeout_s is None else clock() + timeout_s
        while True:
            left_s = POLL_S if ends is None else max(0.0, ends - clock())
            found = await self._answers(run, asked, min(left_s, POLL_S))
            if found.unfit:
                raise GraphError(
                    f"The answer to {found.unfit[0]!r} does not fit the question that "
                    f"the thread {run.thread!r} asked; see the agent's log."
                )
            if found.ready or (ends is not None and clock() >= ends):
                return cast("dict[str, Any]", found.ready)

    async def delete(self, run: RunRef, runner: LangGraphLocal) -> None:
        """End the waiting calls of a thread, and delete its checkpoints.

        Raises:
            ThreadUnavailable: another process runs the thread; nothing was deleted.
        """

        async def work() -> None:
            # The cards first: a crash after the checkpoints were deleted would leave
            # cards that wait for a missing thread.
            await self.threads.ends(run)
            await runner.delete(run.thread)
            await self._forget(run)

        await while_held(self.threads.lease(run), work)

    async def _forget(self, run: RunRef) -> None:
        """Forget a deleted thread, under its lease."""

    async def _under_lease(self, run: RunRef, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` as the only process that runs the thread."""
        with connected(self.gateway, run):
            return await while_held(self.threads.lease(run), work)

    async def _begin_or_go_on(
        self,
        run: RunRef,
        runner: LangGraphLocal,
        given: object,
        *,
        has_begun: bool = False,
    ) -> ThreadState:
        """Give a thread its input, or continue it; the caller has its lease.

        ``has_begun``: the thread existed before, so a missing thread was deleted.
        """
        key = "" if given is None else input_key(given)
        state = await runner.probe(run.thread)
        if given is None and not state.exists:
            if has_begun:
                return state
            raise NoThread(run, " to go on with; give it an input")
        # The same input again is a retry of the program's call, not a second message.
        if given is None or state.taken == key:
            await self.threads.takes_up(run)
            return await self._advancer.forward(run, runner, past_limits=True)
        # A copy, because LangGraph writes ids into the input's messages.
        fresh = copy.deepcopy(given)
        return await self._advancer.begin(
            run, runner, lambda: runner.give(run.thread, fresh, key=key), key=key
        )

    async def _values(
        self, run: RunRef, runner: LangGraphLocal, state: ThreadState
    ) -> dict[str, Any]:
        if not state.exists:
            raise NoThread(run, ", or it was deleted")
        return await retry_transient(lambda: runner.values(run.thread))

    def _error_of(self, run: RunRef, step: asyncio.Task[Any]) -> BaseException | None:
        """Return and log the error that ended a step, if any."""
        error = None if step.cancelled() else step.exception()
        is_closed = self._closing.is_set() and isinstance(error, ThreadUnavailable)
        if error is not None and not is_closed:
            # The caller may have stopped waiting, and other callers may wait as well.
            log_failure(
                logger, error, "run.failed agent=%s thread=%s", run.agent, run.thread
            )
        return error


async def probe(run: RunRef, runner: LangGraphLocal) -> ThreadState:
    """Read a thread's state; wait while its checkpoints cannot be read."""
    return await retry_transient(lambda: runner.probe(run.thread))


async def has_work(run: RunRef, runner: LangGraphLocal, given: object) -> bool:
    """Return True if a thread is worth waiting for: it has an input, or it exists."""
    return given is not None or (await probe(run, runner)).exists


def rests_for_good(state: ThreadState) -> bool:
    """Return True if neither a decision nor a worker will advance this thread."""
    if state.is_finished or not state.exists:
        return True
    is_asking = bool(state.pending) and not state.is_cut_off
    return is_asking and not asked_items(state.pending)


def input_key(given: object) -> str:
    """Return the key of an input; the thread saves it to detect a repeated input."""
    # By value, so that the same input has the same key in the next process.
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def given_up(run: RunRef, reason: str) -> GraphError:
    """Return the error for a thread that is no longer retried."""
    return GraphError(
        f"The thread {run.thread!r} of {run.agent!r} was given up: {reason} Mend the "
        "cause and run it again without input."
    )


def check_who_asked(requester: object, origin: object) -> None:
    """Check the requester and the origin that a program provides.

    Raises:
        TypeError: one of them has another type.
        ValueError: the requester has no Slack user id.
    """
    for name, given, kind in (
        ("requester", requester, Person),
        ("origin", origin, Origin),
    ):
        if not (given is None or isinstance(given, kind)):
            raise TypeError(
                f"{name}={given!r} is no {kind.__name__}; give "
                f"keyturn.gateway.approvals.record.{kind.__name__}."
            )
    if isinstance(requester, Person) and not requester.has_slack_id:
        raise ValueError(f"requester={requester!r}: {NO_SLACK_ID}")


class Attempts:
    """The attempts at one step of a thread.

    Args:
        run: the run of the thread.
        retries: time limits of the retries.
        url: address of the gateway; "" for the one in this process.
    """

    def __init__(self, run: RunRef, retries: RetrySettings, url: str = "") -> None:
        self._run = run
        self._url = url
        self._retries = retries
        self._pauses = backoff_s()
        self._began_s = asyncio.get_running_loop().time()

    def pause_s(self, error: BaseException) -> float | None:
        """Return the pause before the next attempt; None if there is none."""
        if isinstance(error, NoThread):
            return None
        can_pass = isinstance(error, ThreadUnavailable)
        if can_pass and error.__cause__ is None:
            # Another process runs it, or finishes one of its calls: not an outage.
            return BUSY_S
        found = diagnose(error)
        can_pass = can_pass or found.can_pass
        limit = self._retries.limit if can_pass else self._retries.unknown_limit
        age_s = asyncio.get_running_loop().time() - self._began_s
        if (found.is_final and not can_pass) or age_s >= limit.total_seconds():
            return None
        pause_s = max(next(self._pauses), found.retry_after_s)
        logger.warning(
            "run.waiting gateway=%s agent=%s thread=%s error=%s next_in_s=%.1f%s",
            self._url or "here",
            self._run.agent,
            self._run.thread,
            type(error.__cause__ or error).__name__,
            pause_s,
            # Only Keyturn's own texts: other errors may quote secrets or arguments.
            f": {error}" if isinstance(error, KeyturnError) else "",
        )
        return pause_s


R = TypeVar("R", bound=ProgramRuns)


class Program(Generic[R]):
    """Runs the threads of a program's agents behind approvals."""

    _runs: R | None = None
    """The threads, while the program is open."""
    _ungated: Mapping[str, Collection[str]]
    _saver: BaseCheckpointSaver[Any] | None = None
    """Keeps the threads of graphs without a checkpointer; None: such graphs fail."""

    def _serves(self, agent: str) -> None:
        """Note that the program runs threads of an agent."""

    async def _runner(
        self,
        graph: object,
        agent: str,
        *,
        config: RunnableConfig | None = None,
        context: object = None,
    ) -> LangGraphLocal:
        """Return a runner for a program's graph.

        Raises:
            GraphError: the graph cannot be used.
        """
        self._open()
        self._serves(agent)
        ungated = self._ungated.get(agent, ())
        kept = await kept_graph(graph, f"graph of {agent}", self._saver, ungated)
        return LangGraphLocal(
            kept, agent=agent, config=config, context=context, ungated=ungated
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
            library.

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
            GraphError: the agent has another name, or an answer does not fit.
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

    def _open(self) -> R:
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
